"""DeepSpeed's `activation_checkpointing`: the JSON block, and the arguments of `deepspeed.checkpointing.configure`.

DeepSpeed checkpoints functions, mostly one a layer: what a function reads is kept, everything in it is computed again.
It reads six keys and leaves others in silence; here a key that is none is an error. Arguments beat the JSON.

Source: `deepspeed/runtime/activation_checkpointing/{config,checkpointing}.py` and the configuration's documentation.
Read after `layers`.
"""

from collections.abc import Mapping
from typing import Any

from jaxckpt._errors import closest_names
from jaxckpt.ir import Decision, Offload, Partition, Save
from jaxckpt.policy.policy import Policy, Regions
from jaxckpt.policy.readers.checks import Checks
from jaxckpt.policy.readers.layers import inputs, within_segments
from jaxckpt.policy.readers.reading import Reading
from jaxckpt.policy.readers.source import Source, mapping_of
from jaxckpt.policy.rule import Rule

_BLOCK = "activation_checkpointing"
_DEFAULTS: dict[str, bool | int | None] = {
    "partition_activations": False,
    "cpu_checkpointing": False,
    "contiguous_memory_optimization": False,
    "number_checkpoints": None,
    "synchronize_checkpoint_boundary": False,
    "profile": False,
}
_KEY_OF_ARGUMENT = {
    "partition_activations": "partition_activations",
    "contiguous_checkpointing": "contiguous_memory_optimization",
    "num_checkpoints": "number_checkpoints",
    "checkpoint_in_cpu": "cpu_checkpointing",
    "synchronize": "synchronize_checkpoint_boundary",
    "profile": "profile",
}
"""`configure` and the JSON call the same things by different names."""


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
      config: A whole configuration, of which only the block `activation_checkpointing` is read, or that block: a
        mapping, a file, or its text.
      scope: Glob on the scopes that are checkpointed (DeepSpeed's `checkpointable_layers`); None for layers as they
        are found by structure.
      model_axis: The mesh axis of model parallelism, over which `partition_activations` cuts.
      dim: The dimension that is cut; None: the first one that is whole and that the axis divides. DeepSpeed cuts the
        flattened value.
      prefetch: How many layers ahead `cpu_checkpointing` fetches values back; None: chosen from bandwidths.
      num_layers: Of the model; an interval above 1 needs it.
      activation_checkpoint_interval: Of DeepSpeed's pipeline modules: layers in a segment; 0 checkpoints nothing.
      **arguments: As of `deepspeed.checkpointing.configure`: `partition_activations`, `contiguous_checkpointing`,
        `num_checkpoints`, `checkpoint_in_cpu`, `synchronize`, `profile`. They beat the JSON; None says nothing.

    Returns:
      The policy and what it does not carry.

    Raises:
      PolicyError: A key is unknown, a value is of another kind, or settings contradict each other as in DeepSpeed.

    Example:
      >>> reading = policy_from_deepspeed('{"activation_checkpointing": {"cpu_checkpointing": true}}')
      >>> print(*reading.policy.rules, sep="; ")
      dtype = '*float*', boundary = 'input': offload; boundary = 'input': save
    """
    checks = Checks(
        "policy_from_deepspeed",
        needed=f'{{"{_BLOCK}": {{...}}}} with any of {", ".join(_DEFAULTS)}; arguments {", ".join(_KEY_OF_ARGUMENT)}',
    )
    settings = _settings(config, arguments, checks)
    _validate(settings, num_layers, activation_checkpoint_interval, checks)
    checks.done()
    decision = _decision(settings, axis=model_axis, dim=dim, prefetch=prefetch)
    policy = _policy(decision, scope, num_layers, activation_checkpoint_interval)
    return Reading(system="deepspeed", policy=policy, not_carried=tuple(_not_carried(settings, decision)))


def _settings(config: Source | None, arguments: Mapping[str, Any], checks: Checks) -> dict[str, Any]:
    """Defaults, then the JSON, then the arguments."""
    document = {} if config is None else mapping_of(config, checks)
    block = document.get(_BLOCK, document if any(key in _DEFAULTS for key in document) else {})
    if config is not None and _BLOCK not in document and not block and document:
        checks.known((key for key in document if _resembles(key)), (_BLOCK, *_DEFAULTS))
    if not isinstance(block, Mapping):
        checks.wrong(f"{_BLOCK} = {block!r} is no table")
        block = {}
    checks.known(block, _DEFAULTS)
    checks.known(arguments, _KEY_OF_ARGUMENT, what="argument of configure")
    by_argument = {key: arguments[name] for name, key in _KEY_OF_ARGUMENT.items() if arguments.get(name) is not None}
    given = {**block, **by_argument}
    flags = {key: checks.flag(given, key, default=False) for key, usual in _DEFAULTS.items() if usual is False}
    return {**flags, "number_checkpoints": checks.number(given, "number_checkpoints", least=1)}


def _resembles(key: object) -> bool:
    """Whether a key of the whole configuration was probably meant to be ours."""
    return bool(closest_names(str(key), (_BLOCK, *_DEFAULTS), cutoff=0.8))


def _validate(settings: Mapping[str, Any], num_layers: int | None, interval: int, checks: Checks) -> None:
    if settings["contiguous_memory_optimization"]:
        if not settings["partition_activations"]:
            checks.wrong("contiguous_memory_optimization is only available with partition_activations")
        if settings["number_checkpoints"] is None:
            checks.wrong("contiguous_memory_optimization needs number_checkpoints, the number of layers")
    if type(interval) is not int or interval < 0:
        checks.wrong(f"activation_checkpoint_interval = {interval!r} is no whole number of at least 0")
    elif interval > 1 and num_layers is None:
        checks.wrong(f"activation_checkpoint_interval = {interval} needs num_layers, to say where segments begin")


def _decision(settings: Mapping[str, Any], *, axis: str, dim: int | None, prefetch: int | None) -> Decision:
    if settings["cpu_checkpointing"]:
        if settings["partition_activations"]:
            return Offload(prefetch=prefetch, shard=True, axis=axis, dim=dim)
        return Offload(prefetch=prefetch)
    if settings["partition_activations"]:
        return Partition(axis=axis, dim=dim)
    return Save()


def _policy(decision: Decision, scope: str | None, num_layers: int | None, interval: int) -> Policy:
    if interval == 0:
        return Policy(name="deepspeed", default="save", about="activation_checkpoint_interval = 0: all is kept.")
    segments: tuple[Rule, ...] = (
        within_segments(interval, num_layers=num_layers, scope=scope) if num_layers is not None else ()
    )
    rules = (*segments, *inputs(decision, scope=scope, note="what a checkpointed function reads"))
    about = "What layers read is kept as said, everything in them is computed again."
    if scope is None:
        return Policy(name="deepspeed", rules=rules, default="recompute", about=about)
    return Policy(name="deepspeed", rules=rules, regions=Regions(scope=scope), default="save", about=about)


def _not_carried(settings: Mapping[str, Any], decision: Decision) -> list[str]:
    notes = []
    if isinstance(decision, Offload):
        notes.append(
            "cpu_checkpointing keeps the last checkpoint on the device (keep_last_count = 1): here all are offloaded; "
            'put a rule with the last layer and decision = "save" first if its copy costs time.'
        )
    if isinstance(decision, Partition) or (isinstance(decision, Offload) and decision.shard):
        cut = "the first dimension that the axis divides" if decision.dim is None else f"dimension {decision.dim}"
        notes.append(
            f"partition_activations cuts the flattened value, here {cut} is cut: "
            + (
                "what it divides nowhere stays whole, where DeepSpeed asserts."
                if decision.dim is None
                else "or refused."
            )
        )
    if settings["contiguous_memory_optimization"]:
        notes.append(
            "contiguous_memory_optimization: XLA places all buffers of a step in one block before it runs, so there is "
            "nothing to do; layers under jax.lax.scan keep their inputs, or their shards, in one stacked buffer."
        )
    elif settings["number_checkpoints"] is not None:
        notes.append(
            "number_checkpoints sizes the buffers of contiguous_memory_optimization, which is off: it means nothing."
        )
    if settings["synchronize_checkpoint_boundary"]:
        notes.append(
            "synchronize_checkpoint_boundary waits for the device around each checkpoint: a compiled step runs as one "
            "program; call jax.block_until_ready on the step's results where you measure."
        )
    if settings["profile"]:
        notes.append(
            "profile times each checkpoint's forward and backward: a compiled step has no such borders; "
            "jaxckpt.timed_scopes(step, *args) times its scopes op by op, and jax.profiler.trace shows their names."
        )
    return notes
