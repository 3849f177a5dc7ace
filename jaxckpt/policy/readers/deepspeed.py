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
from jaxckpt.policy.policy import Policy
from jaxckpt.policy.readers.layers import FOUND, inputs, regions_of_layers
from jaxckpt.policy.readers.reading import ConfigReader, Reading, Source, integer

_BLOCK = "activation_checkpointing"
_PIPELINE = "pipeline"
_INTERVAL = "activation_checkpoint_interval"
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
    "contiguous_memory_optimization": ": XLA places all buffers of a step in one block before it runs, so that memory "
    "cannot fragment, and there is nothing to do; layers under jax.lax.scan keep their inputs, or their shards, in one "
    "stacked buffer, which is DeepSpeed's contiguous buffer.",
    "number_checkpoints": " sizes the buffers of contiguous_memory_optimization, which is off: no effect.",
}
"""Settings that the policy leaves out, and the end of the sentence about each."""
_CALLS = {
    "synchronize_checkpoint_boundary": " waits for the device around each checkpoint: a compiled step runs as one "
    "program, without boundaries. Call jax.block_until_ready(step(...)) before you read a clock.",
    "profile": " times each checkpoint's forward and backward: a compiled step has no checkpoint boundaries. Call "
    "jaxckpt.timed_scopes(step, *args), which times its scopes op by op; jax.profiler.trace shows their names.",
}
"""Settings that are calls here, and the end of the sentence about each; reading one that is on warns."""


def policy_from_deepspeed(
    config: Source | None = None,
    *,
    scope: str | None = None,
    model_axis: str = "model",
    dim: int | None = None,
    prefetch: int | None = None,
    num_layers: int | None = None,
    activation_checkpoint_interval: int | None = None,
    **arguments: Any,
) -> Reading:
    """Reads DeepSpeed's activation checkpointing.

    Args:
      config: A full configuration, of which only the block `activation_checkpointing` and the interval of `pipeline`
        are read, or the first block: a mapping, a file, or its text.
      scope: Glob on the checkpointed scopes (`checkpointable_layers`); None for the layers of the model, as
        `Regions.scope` finds them.
      model_axis: The mesh axis over which `partition_activations` cuts.
      dim: The dimension that is cut, where DeepSpeed cuts the flattened value; None: the first one that is whole and
        that the axis divides.
      prefetch: How many layers ahead `cpu_checkpointing` fetches values back; None: chosen from bandwidths.
      num_layers: Of the model, to say how many segments an interval makes.
      activation_checkpoint_interval: Of pipeline modules: layers in a segment; 0 checkpoints nothing; None: as the
        configuration's block `pipeline` says, else 1.
      **arguments: As of `deepspeed.checkpointing.configure`; they override the JSON unless None.

    Raises:
      PolicyError: A key is unknown, a value is of another kind, or settings contradict each other as in DeepSpeed.

    Warns:
      UserWarning: `profile` or `synchronize_checkpoint_boundary` is on; the message has the call to make instead.

    Example:
      >>> reading = policy_from_deepspeed('{"activation_checkpointing": {"cpu_checkpointing": true}}')
      >>> print(*reading.policy.rules, "regions", reading.policy.regions)
      dtype = '*float*', boundary = 'input': offload regions of layers
    """
    reader = ConfigReader(
        "deepspeed",
        needed=f'{{"{_BLOCK}": {{...}}}} with any of {", ".join(_KEYS)}; arguments {", ".join(_KEY_OF_ARGUMENT)}',
    )
    document = {} if config is None else reader.mapping(config)
    settings = _settings(document, arguments, reader)
    interval = _interval(activation_checkpoint_interval, document)
    _validate(settings, interval, reader)
    reader.done()
    decision = _decision(settings, axis=model_axis, dim=dim, prefetch=prefetch)
    reader.understood += _understood(interval, num_layers, scope)
    reader.not_carried += _not_carried(settings, dim)
    reader.calls += (f"{key}{words}" for key, words in _CALLS.items() if settings[key])
    return reader.reading(_policy(decision, scope, interval))


def _settings(document: Mapping[str, Any], arguments: Mapping[str, Any], reader: ConfigReader) -> dict[str, Any]:
    """The defaults, overridden by the JSON, overridden by the arguments."""
    block = _block(document, reader)
    given = reader.values(dict.fromkeys(_KEY_OF_ARGUMENT, Any), arguments, "argument ")
    overrides = {_KEY_OF_ARGUMENT[name]: value for name, value in given.items() if value is not None}
    settings = reader.values(_KEYS, {**block, **overrides})
    return {**dict.fromkeys(_KEYS, False), "number_checkpoints": None, **settings}


def _block(document: Mapping[str, Any], reader: ConfigReader) -> Mapping[str, Any]:
    """The block of a full configuration, or the configuration where it is the block itself; empty where it has none."""
    if any(key in _KEYS for key in document) and _BLOCK not in document:
        return document
    reader.ignored += (str(key) for key in document if key not in (_BLOCK, _PIPELINE))
    if _BLOCK in document:
        return reader.value(dict, document[_BLOCK], _BLOCK) or {}
    keys = {_BLOCK: Any, **_KEYS}
    resembling = {key: value for key, value in document.items() if closest_names(str(key), keys, cutoff=0.8)}
    return reader.values(keys, resembling)


def _interval(given: int | None, document: Mapping[str, Any]) -> Any:
    """Layers in a segment: as the argument says, or the configuration's block for pipelines if that is above 0."""
    of_pipeline = document.get(_PIPELINE)
    configured = of_pipeline.get(_INTERVAL) if isinstance(of_pipeline, Mapping) else None
    return (configured or 1) if given is None else given


def _validate(settings: Mapping[str, Any], interval: Any, reader: ConfigReader) -> None:
    if settings["contiguous_memory_optimization"]:
        if not settings["partition_activations"]:
            reader.wrong("contiguous_memory_optimization is only available with partition_activations")
        if settings["number_checkpoints"] is None:
            reader.wrong("contiguous_memory_optimization needs number_checkpoints, the number of layers")
    if type(interval) is not int or interval < 0:
        reader.wrong(f"{_INTERVAL} = {interval!r} is no whole number of at least 0")


def _understood(interval: int, num_layers: int | None, scope: str | None) -> Iterator[str]:
    if interval > 1:
        count = "" if num_layers is None else f"{-(-num_layers // interval)} segments in {num_layers} layers: "
        yield f"{_INTERVAL} = {interval}: {count}of {interval} layers the first input alone is saved."
    if interval and scope is None:
        yield FOUND


def _decision(settings: Mapping[str, Any], *, axis: str, dim: int | None, prefetch: int | None) -> Decision:
    is_cut = settings["partition_activations"]
    if not settings["cpu_checkpointing"]:
        return Partition(axis=axis, dim=dim) if is_cut else Save()
    return Offload(prefetch=prefetch, shard=True, axis=axis, dim=dim) if is_cut else Offload(prefetch=prefetch)


def _policy(decision: Decision, scope: str | None, interval: int) -> Policy:
    if interval == 0:
        return Policy(name="deepspeed", default="save", about="activation_checkpoint_interval = 0: all is kept.")
    return Policy(
        name="deepspeed",
        rules=inputs(decision, note="what a checkpointed function reads"),
        regions=regions_of_layers(scope, segment=interval),
        default="save",
        about="What layers read is kept as said, everything in them is computed again.",
    )


def _not_carried(settings: Mapping[str, Any], dim: int | None) -> Iterator[str]:
    """Settings that the policy leaves out: first those of the decision, then the others."""
    split = "the first dimension that the axis divides; a value without one stays whole, where DeepSpeed asserts."
    if dim is not None:
        split = f"dimension {dim}; a value whose dimension the axis does not divide is refused."
    for key, words in _NOT_CARRIED.items():
        has_effect = key == "number_checkpoints" and settings["contiguous_memory_optimization"]
        if settings[key] and not has_effect:
            yield f"{key}{words}{split if key == 'partition_activations' else ''}"
