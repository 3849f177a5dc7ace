"""DeepSpeed's `activation_checkpointing`: the JSON block, and the arguments of `deepspeed.checkpointing.configure`.

DeepSpeed checkpoints functions, mostly one a layer: inputs of the function are saved, everything in it is recomputed.
DeepSpeed reads six keys and ignores others; here an unknown key is an error. Arguments override the JSON.

Source: `deepspeed/runtime/activation_checkpointing/{config,checkpointing}.py` and the configuration's documentation.
Read after `layers`.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from jaxckpt._errors import closest_names
from jaxckpt.ir import Decision, Offload, Partition, Save
from jaxckpt.policy.policy import Policy, Regions
from jaxckpt.policy.readers.layers import inputs, within_segments
from jaxckpt.policy.readers.reading import ConfigReader, Reading, Source, integer

_BLOCK = "activation_checkpointing"
_KEY_OF_ARGUMENT = {
    "partition_activations": "partition_activations",
    "contiguous_checkpointing": "contiguous_memory_optimization",
    "num_checkpoints": "number_checkpoints",
    "checkpoint_in_cpu": "cpu_checkpointing",
    "synchronize": "synchronize_checkpoint_boundary",
    "profile": "profile",
}
"""The JSON key of each argument of `configure`."""
_KEYS: Mapping[str, Any] = {**dict.fromkeys(_KEY_OF_ARGUMENT.values(), bool), "number_checkpoints": integer(1)}

_NOT_CARRIED = {
    "cpu_checkpointing": " keeps the last checkpoint on the device (keep_last_count = 1): here all are offloaded; put "
    'a rule with the last layer and decision = "save" first if its copy costs time.',
    "partition_activations": " splits the flattened value in DeepSpeed, here ",
    "contiguous_memory_optimization": ": XLA places all buffers of a step in one block before it runs, so there is "
    "nothing to do; layers under jax.lax.scan keep their inputs, or their shards, in one stacked buffer.",
    "number_checkpoints": " sizes the buffers of contiguous_memory_optimization, which is off: no effect.",
    "synchronize_checkpoint_boundary": " waits for the device around each checkpoint: a compiled step runs as one "
    "program; call jax.block_until_ready on the step's results before you read a clock.",
    "profile": " times each checkpoint's forward and backward: a compiled step has no checkpoint boundaries; "
    "jaxckpt.timed_scopes(step, *args) times its scopes op by op, and jax.profiler.trace shows their names.",
}
"""Settings that the policy leaves out, and the end of the sentence about each."""


def policy_from_deepspeed(
    config: Source | None = None,
    *,
    scope: str | None = None,
    model_axis: str = "model",
    dim: int | None = None,
    prefetch: int | None = None,
    num_layers: int | None = None,
    activation_checkpoint_interval: int = 1,
    **arguments: Any,
) -> Reading:
    """Reads DeepSpeed's activation checkpointing.

    Args:
      config: A full configuration, of which only the block `activation_checkpointing` is read, or that block: a
        mapping, a file, or its text.
      scope: Glob on the checkpointed scopes (`checkpointable_layers`); None for layers as found by structure.
      model_axis: The mesh axis over which `partition_activations` cuts.
      dim: The dimension that is cut, where DeepSpeed cuts the flattened value; None: the first one that is whole and
        that the axis divides.
      prefetch: How many layers ahead `cpu_checkpointing` fetches values back; None: chosen from bandwidths.
      num_layers: Of the model; an interval above 1 needs it.
      activation_checkpoint_interval: Of pipeline modules: layers in a segment; 0 checkpoints nothing.
      **arguments: As of `deepspeed.checkpointing.configure`; they override the JSON unless None.

    Raises:
      PolicyError: A key is unknown, a value is of another kind, or settings contradict each other as in DeepSpeed.

    Example:
      >>> reading = policy_from_deepspeed('{"activation_checkpointing": {"cpu_checkpointing": true}}')
      >>> print(*reading.policy.rules, sep="; ")
      dtype = '*float*', boundary = 'input': offload; boundary = 'input': save
    """
    reader = ConfigReader(
        "deepspeed",
        needed=f'{{"{_BLOCK}": {{...}}}} with any of {", ".join(_KEYS)}; arguments {", ".join(_KEY_OF_ARGUMENT)}',
    )
    settings = _settings(config, arguments, reader)
    _validate(settings, num_layers, activation_checkpoint_interval, reader)
    reader.done()
    decision = _decision(settings, axis=model_axis, dim=dim, prefetch=prefetch)
    reader.not_carried += _not_carried(settings, dim)
    return reader.reading(_policy(decision, scope, num_layers, activation_checkpoint_interval))


def _settings(config: Source | None, arguments: Mapping[str, Any], reader: ConfigReader) -> dict[str, Any]:
    """The defaults, overridden by the JSON, overridden by the arguments."""
    block = {} if config is None else _block(reader.mapping(config), reader)
    given = reader.values(dict.fromkeys(_KEY_OF_ARGUMENT, Any), arguments, "argument ")
    overrides = {_KEY_OF_ARGUMENT[name]: value for name, value in given.items() if value is not None}
    settings = reader.values(_KEYS, {**block, **overrides})
    return {**dict.fromkeys(_KEYS, False), "number_checkpoints": None, **settings}


def _block(document: Mapping[str, Any], reader: ConfigReader) -> Mapping[str, Any]:
    """The block of a full configuration, or the configuration where it is the block itself; empty where it has none."""
    if _BLOCK in document:
        return reader.value(dict, document[_BLOCK], _BLOCK) or {}
    if any(key in _KEYS for key in document):
        return document
    keys = {_BLOCK: Any, **_KEYS}
    resembling = {key: value for key, value in document.items() if closest_names(str(key), keys, cutoff=0.8)}
    return reader.values(keys, resembling)


def _validate(settings: Mapping[str, Any], num_layers: int | None, interval: int, reader: ConfigReader) -> None:
    if settings["contiguous_memory_optimization"]:
        if not settings["partition_activations"]:
            reader.wrong("contiguous_memory_optimization is only available with partition_activations")
        if settings["number_checkpoints"] is None:
            reader.wrong("contiguous_memory_optimization needs number_checkpoints, the number of layers")
    if type(interval) is not int or interval < 0:
        reader.wrong(f"activation_checkpoint_interval = {interval!r} is no whole number of at least 0")
    elif interval > 1 and num_layers is None:
        reader.wrong(f"activation_checkpoint_interval = {interval} needs num_layers, to say where segments begin")


def _decision(settings: Mapping[str, Any], *, axis: str, dim: int | None, prefetch: int | None) -> Decision:
    is_cut = settings["partition_activations"]
    if not settings["cpu_checkpointing"]:
        return Partition(axis=axis, dim=dim) if is_cut else Save()
    return Offload(prefetch=prefetch, shard=True, axis=axis, dim=dim) if is_cut else Offload(prefetch=prefetch)


def _policy(decision: Decision, scope: str | None, num_layers: int | None, interval: int) -> Policy:
    if interval == 0:
        return Policy(name="deepspeed", default="save", about="activation_checkpoint_interval = 0: all is kept.")
    segments = within_segments(interval, num_layers=num_layers, scope=scope)
    rules = (*segments, *inputs(decision, scope=scope, note="what a checkpointed function reads"))
    about = "What layers read is kept as said, everything in them is computed again."
    if scope is None:
        return Policy(name="deepspeed", rules=rules, default="recompute", about=about)
    return Policy(name="deepspeed", rules=rules, regions=Regions(scope=scope), default="save", about=about)


def _not_carried(settings: Mapping[str, Any], dim: int | None) -> Iterator[str]:
    """Settings that the policy leaves out: first those of the decision, then the others."""
    split = "the first dimension that the axis divides; a value without one stays whole, where DeepSpeed asserts."
    if dim is not None:
        split = f"dimension {dim}; a value whose dimension the axis does not divide is refused."
    for key, words in _NOT_CARRIED.items():
        has_effect = key == "number_checkpoints" and settings["contiguous_memory_optimization"]
        if settings[key] and not has_effect:
            yield f"{key}{words}{split if key == 'partition_activations' else ''}"
