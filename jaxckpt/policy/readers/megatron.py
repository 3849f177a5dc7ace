"""Megatron-LM's flags: full and selective recomputation, distributed saved activations, offloading.

Full: the input of each segment of layers is saved (`uniform`), or the first layers of each pipeline stage are
recomputed (`block`). Selective: modules of a layer, above all the core attention (scores, softmax, dropout), are
recomputed and all else is saved. Flags of Megatron that do not concern residuals are ignored; an unknown flag that
resembles one of those read here is an error.

Source: Megatron-LM `training/arguments.py`, `core/transformer/transformer_config.py`; selective recomputation:
Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models (2022), section 5.
Read after `layers` and `flags`.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxckpt.ir import Decision, Offload, Partition, Recompute, Save
from jaxckpt.policy.policy import Policy
from jaxckpt.policy.readers.flags import settings_of_flags
from jaxckpt.policy.readers.layers import FOUND, inputs, regions_of_layers
from jaxckpt.policy.readers.reading import ConfigReader, Reading, integer, one_of, several
from jaxckpt.policy.rule import Match, Rule

CORE_ATTENTION = "core_attn"
SCOPES: Mapping[str, str] = {
    CORE_ATTENTION: "*{attn,attention,Attention}*",
    "layernorm": "*{norm,Norm,ln_}*",
    "mlp": "*{mlp,MLP,Mlp,feed_forward}*",
    "moe": "*{moe,MoE}*",
    "moe_act": "*{moe,MoE,expert}*",
    "shared_experts": "*shared_expert*",
    "mla_up_proj": "*up_proj*",
}
"""Globs on the scopes of a JAX model for the modules of Megatron's layers; the argument `scopes` overrides them."""

MODULES = (*SCOPES, "gdn_norm_out", "gdp_in_proj", "gdp_qkv", "mhc")
OFFLOADED: Mapping[str, str] = {
    "attn_norm": "*{attn,attention,Attention,input}*{norm,Norm}*",
    "qkv_linear": "*qkv*",
    CORE_ATTENTION: SCOPES[CORE_ATTENTION],
    "attn_proj": "*{attn,attention,Attention}*/{out,proj,out_proj,o_proj,linear_proj}",
    "mlp_norm": "*{mlp,post_attention}*{norm,Norm}*",
    "expert_fc1": "*expert*{fc1,wi,up}*",
    "moe_act": SCOPES["moe_act"],
    "fused_group_mlp": "*expert*",
}
_SOFTMAX = "{exp,exp2,div,sub,max,reduce_max,reduce_sum,select_n,convert_element_type}"
_ELSEWHERE: Mapping[str, str] = {
    "activation_offload_fraction": "it is a share of groups, not of bytes: say the layers in the rule (layers = ...), "
    "or give jaxckpt.plan a budget",
    "delta_offload_bytes_across_pp_ranks": "stages are programs of their own: plan each with its budget",
    "optimizer_cpu_offload": "a policy is about residuals: give the optimiser's state a sharding with "
    "memory_kind='pinned_host'",
    "optimizer_offload_fraction": "a policy is about residuals, not about the optimiser's state",
    "overlap_cpu_optimizer_d2h_h2d": "a policy is about residuals, not about the optimiser's state",
    "cpu_offloading_weights": "a policy is about residuals: give the parameters a sharding with "
    "memory_kind='pinned_host'",
    "cpu_offloading_double_buffering": "XLA places the buffers of copies itself",
}
"""Flags that no policy can express, and what to do instead."""

_COUNTS = ("recompute_num_layers", "num_layers", "pipeline_model_parallel_size", "tensor_model_parallel_size")
_SWITCHES = (
    *("recompute_activations", "distribute_saved_activations", "sequence_parallel"),
    *("cpu_offloading", "cpu_offloading_activations", "cpu_offloading_weights", "cpu_offloading_double_buffering"),
    "fine_grained_activation_offloading",
)
_VALUELESS = (*_SWITCHES, "optimizer_cpu_offload", "overlap_cpu_optimizer_d2h_h2d")
"""Flags that are true where no value follows."""

_KEYS: Mapping[str, Any] = {
    **dict.fromkeys(_ELSEWHERE, Any),
    **dict.fromkeys(_COUNTS, integer(1)),
    **dict.fromkeys(("cpu_offloading_num_layers", "min_offloaded_tensor_size"), integer(0)),
    **dict.fromkeys(_SWITCHES, bool),
    "recompute_modules": several(MODULES),
    "offload_modules": several(OFFLOADED),
    "recompute_granularity": one_of(("full", "selective")),
    "recompute_method": one_of(("uniform", "block")),
}
_DEFAULT_FLOOR = 1024 * 1024
_ELEMENT_BYTES = 2


def policy_from_megatron(
    flags: Sequence[str] | Mapping[str, Any] | Path,
    *,
    num_layers: int | None = None,
    model_axis: str = "model",
    dim: int = 1,
    prefetch: int | None = None,
    scopes: Mapping[str, str] | None = None,
    layer_scope: str | None = None,
) -> Reading:
    """Reads Megatron's recomputation and offloading.

    Args:
      flags: Of the command line, one text each (as `sys.argv`) or all in one; or names and values, with or without
        dashes, in tables within tables too: a mapping, or the text of one in JSON or YAML; or a file of either.
      num_layers: Of the model, where the flags do not say it and the meaning needs it.
      model_axis: The mesh axis of tensor parallelism, over which `--distribute-saved-activations` cuts.
      dim: The dimension that is cut. Megatron cuts the flattened value.
      prefetch: How many layers ahead offloaded values are fetched back; None: chosen from bandwidths.
      scopes: For names of `--recompute-modules` and `--offload-modules`, globs on the scopes that they are here.
      layer_scope: Glob on the scopes of layers; None for the layers of the model, as `Regions.scope` finds them.

    Raises:
      PolicyError: A flag is unknown, or flags contradict each other as in Megatron.

    Example:
      >>> flags = "--recompute-granularity full --recompute-method block --recompute-num-layers 2 --num-layers 12"
      >>> print(policy_from_megatron(flags.split()).policy)
      policy "megatron-full-block": regions of layers 0-1: recompute; the rest: save
    """
    reader = ConfigReader("megatron", needed=f"flags such as {', '.join(_dashed(key) for key in _KEYS)}")
    settings = _settings(flags, num_layers, reader)
    overrides = scopes or {}
    elsewhere = {key: why for key, why in _ELSEWHERE.items() if settings.get(key) not in (None, False)}
    reader.not_carried += [f"{_dashed(key)}: {why}." for key, why in elsewhere.items()]
    rules = list(_offloading(settings, {**OFFLOADED, **overrides}, prefetch, reader))
    match settings.get("recompute_granularity"):
        case "full":
            policy = _full(settings, rules, Partition(axis=model_axis, dim=dim), layer_scope, reader)
        case "selective":
            modules = tuple(settings.get("recompute_modules") or (CORE_ATTENTION,))
            policy = _selective(modules, rules, {**SCOPES, **overrides}, reader)
        case _:
            policy = Policy(name="megatron", rules=tuple(rules), default="save")
    return reader.reading(policy)


def _settings(
    flags: Sequence[str] | Mapping[str, Any] | Path, num_layers: int | None, reader: ConfigReader
) -> dict[str, Any]:
    """The flags by key; unknown, wrong and contradictory flags are refused."""
    settings = settings_of_flags(flags, _KEYS, switches=_VALUELESS, reader=reader)
    if num_layers is not None:
        settings["num_layers"] = num_layers
    reader.values(_KEYS, settings)
    reader.done()
    if settings.get("recompute_activations"):
        settings.setdefault("recompute_granularity", "selective")
    reader.problems += _contradictions(settings)
    reader.done()
    return settings


def _dashed(key: str) -> str:
    return f"--{key.replace('_', '-')}"


def _stage_count(settings: Mapping[str, Any]) -> int:
    """Stages of the pipeline."""
    return settings.get("pipeline_model_parallel_size") or 1


def _contradictions(settings: Mapping[str, Any]) -> Iterator[str]:
    """Flags that Megatron refuses together, and flags that Megatron would ignore."""
    granularity = settings.get("recompute_granularity", "none")
    yield from _full_problems(settings) if granularity == "full" else _problems_without_full(settings, granularity)
    if settings.get("recompute_modules") and granularity != "selective":
        yield f"--recompute-modules is for --recompute-granularity selective, and this is {granularity}"
    if settings.get("distribute_saved_activations"):
        yield from _distribution_problems(settings)
    if settings.get("offload_modules") and not settings.get("fine_grained_activation_offloading"):
        yield "--offload-modules is for --fine-grained-activation-offloading, which is off"
    if settings.get("fine_grained_activation_offloading") and not settings.get("offload_modules"):
        yield "--fine-grained-activation-offloading needs --offload-modules"
    if settings.get("cpu_offloading"):
        yield from _offloading_problems(settings)


def _full_problems(settings: Mapping[str, Any]) -> Iterator[str]:
    """Contradictions of full recomputation."""
    method, count = settings.get("recompute_method"), settings.get("recompute_num_layers")
    layers, stages = settings.get("num_layers"), _stage_count(settings)
    if method is None:
        yield "--recompute-granularity full needs --recompute-method uniform or block"
    if count is None:
        yield "--recompute-granularity full needs --recompute-num-layers"
    if layers is None:
        if count is not None and method == "block" and stages > 1:
            yield "--num-layers is needed to say which layers are meant"
    elif layers % stages:
        yield f"--num-layers {layers} does not divide by --pipeline-model-parallel-size {stages}"
    elif (count or 0) > layers // stages:
        yield f"--recompute-num-layers {count} is more than the {layers // stages} layers of a stage"


def _problems_without_full(settings: Mapping[str, Any], granularity: str) -> Iterator[str]:
    """Flags of full recomputation where another granularity is chosen, or none."""
    given = [key for key in ("recompute_method", "recompute_num_layers") if settings.get(key) is not None]
    yield from (f"{_dashed(key)} is for --recompute-granularity full, and this is {granularity}" for key in given)


def _distribution_problems(settings: Mapping[str, Any]) -> Iterator[str]:
    """Contradictions of `--distribute-saved-activations`."""
    if settings.get("recompute_granularity") != "full":
        yield "--distribute-saved-activations is for --recompute-granularity full alone"
    if settings.get("sequence_parallel"):
        yield "--distribute-saved-activations must be off with --sequence-parallel"
    if settings.get("tensor_model_parallel_size") == 1:
        yield "--distribute-saved-activations needs --tensor-model-parallel-size above 1"


def _offloading_problems(settings: Mapping[str, Any]) -> Iterator[str]:
    """Contradictions of `--cpu-offloading`."""
    count, layers = settings.get("cpu_offloading_num_layers"), settings.get("num_layers")
    if count is None:
        yield "--cpu-offloading needs --cpu-offloading-num-layers"
    elif layers is not None and count >= layers:
        yield f"--cpu-offloading-num-layers {count} must be below the {layers} layers of the model"
    if _stage_count(settings) > 1:
        yield "--cpu-offloading has no support for pipeline parallelism"
    if settings.get("recompute_granularity") is not None:
        yield "--cpu-offloading does not work with recomputation"


def _full(
    settings: Mapping[str, Any], before: list[Rule], cut: Partition, layer_scope: str | None, reader: ConfigReader
) -> Policy:
    count, num_layers = settings["recompute_num_layers"], settings.get("num_layers")
    saved: Decision = Save()
    if settings.get("distribute_saved_activations"):
        saved = cut
        reader.not_carried.append(
            f"--distribute-saved-activations splits the flattened value in Megatron, here dimension {cut.dim}: the "
            "axis must divide it; give dim=... for another one."
        )
    if layer_scope is None:
        reader.understood.append(FOUND)
    rules = (*before, *inputs(saved, note="what layers read"))
    if settings["recompute_method"] == "block":
        regions = regions_of_layers(layer_scope, numbers=_first_of_stages(count, num_layers, _stage_count(settings)))
    else:
        regions = regions_of_layers(layer_scope, segment=count)
    return Policy(name=f"megatron-full-{settings['recompute_method']}", rules=rules, regions=regions, default="save")


def _first_of_stages(count: int, layers: int | None, stages: int) -> list[int]:
    """The first layers of each pipeline stage."""
    size = (layers or count) // stages
    return [stage * size + layer for stage in range(stages) for layer in range(count)]


def _selective(modules: tuple[str, ...], before: list[Rule], where: Mapping[str, str], reader: ConfigReader) -> Policy:
    rules = [*before, *(rule for module in modules if module in where for rule in _module(module, where[module]))]
    reader.not_carried += [
        f"--recompute-modules {module}: its scope in this model is not known; give scopes={{{module!r}: '*/glob'}}."
        for module in modules
        if module not in where
    ]
    if CORE_ATTENTION in modules:
        reader.not_carried.append(
            "core_attn under a fused attention kernel: the kernel is one op whose scores are never in memory, and its "
            "rules match nothing there, which is an error; take them out (policy flash_attention says what to keep)."
        )
    return Policy(name="megatron-selective", rules=tuple(rules), default="save")


def _module(module: str, scope: str) -> Iterator[Rule]:
    if module == CORE_ATTENTION:
        note = "scores, softmax and what is weighted by it"
        yield Rule(match=Match(scope=scope, batched=True), decision=Recompute(), note=note)
        yield Rule(match=Match(scope=scope, primitive=_SOFTMAX), decision=Recompute(), note=note)
    elif module == "moe_act":
        yield Rule(match=Match(scope=scope, primitive="elementwise"), decision=Recompute(), note="moe_act")
    else:
        yield Rule(match=Match(scope=scope, boundary="input"), decision=Save(), note=f"what {module} reads")
        yield Rule(match=Match(scope=scope), decision=Recompute(), note=module)


def _offloading(
    settings: Mapping[str, Any], where: Mapping[str, str], prefetch: int | None, reader: ConfigReader
) -> Iterator[Rule]:
    moved = Offload(prefetch=prefetch)
    count = settings.get("cpu_offloading_num_layers", 0) if settings.get("cpu_offloading") else 0
    if count and settings.get("cpu_offloading_activations", True):
        yield Rule(match=Match(layers=f"0-{count - 1}"), decision=moved, note="--cpu-offloading")
    floor = settings.get("min_offloaded_tensor_size", _DEFAULT_FLOOR)
    for module in settings.get("offload_modules") or ():
        match = Match(scope=where[module], boundary="input", min_bytes=floor * _ELEMENT_BYTES)
        yield Rule(match=match, decision=moved, note=f"what {module} reads")
    if settings.get("offload_modules"):
        reader.not_carried += [
            f"--min-offloaded-tensor-size counts elements, here bytes count: {floor} elements of {_ELEMENT_BYTES} "
            "bytes; change min_bytes in the rules for float32.",
            "--fine-grained-activation-offloading keeps the last group on the device: here all are offloaded; put a "
            'rule with the last layer and decision = "save" first if its copy costs time.',
        ]
