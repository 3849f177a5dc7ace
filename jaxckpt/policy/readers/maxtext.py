"""MaxText's `remat_policy`, and its per-tensor settings `device | remat | offload`.

MaxText's policies name tensors that are saved or offloaded, and ignore names that the model does not have. Here such
a policy is one rule for the list, of which at least one name must be in the step; each tensor that is set by itself
(`remat_policy = custom`) is a rule of its own, and an error where the step does not have the name.

Source: MaxText `layers/decoders.py` (`get_remat_policy`), `configs/types.py` (`RematAndOffload`).
Read after `reading`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from jaxckpt.ir import Decision, Offload, Save
from jaxckpt.policy.policy import Policy
from jaxckpt.policy.readers.layers import FOUND, inputs, regions_of_layers
from jaxckpt.policy.readers.reading import ConfigReader, Reading, Source, one_of
from jaxckpt.policy.rule import Match, Rule

_QKV = ("query_proj", "value_proj", "key_proj", "kv_proj", "qkv_proj")
_ATTENTION = (*_QKV, "out_proj")
_MINIMAL = (*_ATTENTION, "mlpwi_0", "mlpwi_1", "mlpwi", "mlpwo")

SAVED_TENSORS: Mapping[str, tuple[str, ...]] = {
    "full": (),
    "minimal": _MINIMAL,
    "minimal_with_context": (*_MINIMAL, "context"),
    "minimal_flash": (*_MINIMAL, "context"),
    "minimal_with_quantization": (*_MINIMAL, "quantization"),
    "minimal_with_context_and_quantization": (*_MINIMAL, "context", "quantization"),
    "save_dot_with_context_except_mlp": (*_ATTENTION, "context"),
    "save_dot_except_mlpwi": (*_ATTENTION, "mlpwo"),
    "save_dot_except_mlp": _ATTENTION,
    "save_qkv_proj": _QKV,
    "save_out_proj": ("out_proj",),
}
"""The tensors that each `remat_policy` saves. "none" and "custom" have no lists; "minimal_flash" is an old name."""
OFFLOADED_TENSORS: Mapping[str, tuple[str, ...]] = {
    "qkv_proj_offloaded": ("query_proj", "value_proj", "key_proj", "kv_proj"),
    "minimal_offloaded": _MINIMAL,
}

POLICIES = (*SAVED_TENSORS, *OFFLOADED_TENSORS, "custom", "none")
TENSORS = (
    "decoder_layer_input",
    *("context", "mlpwi", "mlpwi_0", "mlpwi_1", "mlpwo", "moe_mlpwi_0", "moe_mlpwi_1", "moe_mlpwo"),
    *("query_proj", "key_proj", "value_proj", "kv_proj", "qkv_proj", "out_proj", "query_wa_proj", "kv_wa_proj"),
    *("mla_q", "mla_kv", "attention_out", "engram", "indexer_cutoff_threshold"),
)
"""Tensors that can be set one by one."""

_ABOUT = "As MaxText's policy of this name; the model's tensors carry MaxText's names (checkpoint_name)."
_PLACES = ("device", "remat", "offload")
_INPUT = "decoder_layer_input"
_FLAGS = {
    "set_remat_policy_on_pipeline_iterations": "they are a loop of the step: a rule with its scope says it",
    "set_remat_policy_on_layers_per_stage": "layers of a stage are a loop of the step: a rule with their scope says it",
    "optimizer_memory_host_offload": "a policy is about residuals; give the optimiser's state a sharding with "
    "memory_kind='pinned_host'",
    "parameter_memory_host_offload": "a policy is about residuals; give the parameters a sharding with "
    "memory_kind='pinned_host'",
}
"""Flags that no policy can express, and what to do instead."""

_VISION = "remat_policy_for_vit"
_KEYS: Mapping[str, Any] = {
    "remat_policy": one_of(POLICIES),
    _VISION: Any,
    **dict.fromkeys(TENSORS, one_of(_PLACES)),
    **dict.fromkeys(_FLAGS, bool),
}
_SETTING = re.compile(r"(\w+)=(\S*)")
_YAML_KEY = re.compile(r"^\s*\w+\s*:(\s|$)", re.MULTILINE)


def policy_from_maxtext(
    config: Source | None = None, *, prefetch: int | None = None, scope: str | None = None, **settings: Any
) -> Reading:
    """Reads MaxText's remat settings.

    Args:
      config: A value of `remat_policy` ("minimal"); or MaxText's configuration, in which other keys are ignored: a
        mapping, a YAML file or its text, or its command line ("remat_policy=custom context=device").
      prefetch: How many layers ahead offloaded tensors are fetched back; None: chosen from bandwidths.
      scope: Glob on the scopes of layers; None for the layers of the model, as `Regions.scope` finds them.
      **settings: `remat_policy` and tensors; they beat the configuration.

    Raises:
      PolicyError: The policy, a tensor or a place is unknown; the message names the closest one.
      MissingPackageError: The configuration is YAML, and nothing is installed that reads it.

    Example:
      >>> reading = policy_from_maxtext(remat_policy="custom", context="device", mlpwo="offload")
      >>> print(*reading.policy.rules, sep="; ")
      name = 'context': save; name = 'mlpwo': offload
    """
    reader = ConfigReader(
        "maxtext",
        needed=f"remat_policy: one of {', '.join(POLICIES)}; with custom {', '.join(_PLACES)} for any of "
        f"{', '.join(TENSORS)}",
    )
    given = reader.values(_KEYS, {**_settings_of(config, reader), **settings})
    word = given.get("remat_policy", "full")
    places = {name: given[name] for name in TENSORS if name in given}
    flags = [flag for flag in _FLAGS if given.get(flag)]
    if word == "custom" and places.get(_INPUT) == "remat":
        reader.wrong(f"{_INPUT} = 'remat': the input of a layer cannot be recomputed; it is 'device' or 'offload'")
    reader.done()
    rules = _custom(places, prefetch) if word == "custom" else _named(word, prefetch)
    if word == "none":
        policy = Policy(name="maxtext-none", default="save", about="No remat: all is kept.")
    else:
        policy = Policy(
            name=f"maxtext-{word}", rules=tuple(rules), regions=regions_of_layers(scope), default="save", about=_ABOUT
        )
        reader.understood += [FOUND] if scope is None else []
    reader.not_carried += _not_carried(word, places, flags, given.get(_VISION))
    return reader.reading(policy)


def _not_carried(word: str, places: Mapping[str, str], flags: Iterable[str], vision: object) -> Iterator[str]:
    """Settings that the policy leaves out: flags, the policy of a vision encoder, tensors that MaxText ignores too."""
    for flag in flags:
        yield f"{flag}: {_FLAGS[flag]}."
    if vision is not None:
        yield (
            f"{_VISION} = {vision!r} is for the vision encoder alone: read it as a second policy and mark the encoder "
            "with jaxckpt.scope(..., policy=...)."
        )
    for name, place in places.items() if word != "custom" else ():
        if place != ("device" if name == _INPUT else "remat"):
            yield f'{name} = "{place}": MaxText reads it with remat_policy = "custom" alone, and this is "{word}".'


def _settings_of(config: Source | None, reader: ConfigReader) -> dict[str, Any]:
    """The known keys of a configuration, and unknown ones that place a tensor, which are then refused as unknown."""
    document = _document(config, reader)
    places = ("remat", "offload")
    read = {str(k): v for k, v in document.items() if k in _KEYS or (isinstance(v, str) and v in places)}
    reader.ignored += (key for key in map(str, document) if key not in read)
    return read


def _document(config: Source | None, reader: ConfigReader) -> Mapping[str, Any]:
    """All keys of a configuration: a word, a mapping, a command line, or YAML."""
    if config is None:
        return {}
    if isinstance(config, str) and re.fullmatch(r"\w+", config):
        return {"remat_policy": config}
    if isinstance(config, Mapping):
        return config
    text = reader.text(config)
    pairs = [] if _YAML_KEY.search(text) else _SETTING.findall(text)
    return {key: _plain(value) for key, value in pairs} if pairs else reader.mapping(text, yaml=True)


def _plain(value: str) -> str | bool:
    """A value of a command line, without quotes."""
    value = value.strip("'\"")
    return {"true": True, "false": False}.get(value.lower(), value)


def _named(word: str, prefetch: int | None) -> Iterator[Rule]:
    offloaded = OFFLOADED_TENSORS.get(word, ())
    names = offloaded or SAVED_TENSORS.get(word, ())
    decision: Decision = Offload(prefetch=prefetch) if offloaded else Save()
    if names:
        yield Rule(match=Match(name=names[0] if len(names) == 1 else f"{{{','.join(names)}}}"), decision=decision)


def _custom(places: Mapping[str, str], prefetch: int | None) -> Iterator[Rule]:
    moved: dict[str, Decision] = {"device": Save(), "offload": Offload(prefetch=prefetch)}
    for name, place in places.items():
        if name != _INPUT and place in moved:
            yield Rule(match=Match(name=name), decision=moved[place])
    yield from inputs(moved[places.get(_INPUT, "device")])
