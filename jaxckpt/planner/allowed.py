"""What a planner may do with a residual besides saving it: words that callers give, checked."""

from jaxckpt._errors import UnknownStrategyError, UnsupportedDecisionError
from jaxckpt.ir import Graph, Partition

MAY_DO = ("recompute", "offload", "partition")
"""What it can decide."""

STATE = ("offload_parameters", "offload_optimizer_state")
"""What is no residual but an argument of the step: where it lies is the caller's choice, not a plan's."""


def checked_allow(allow: tuple[str, ...]) -> tuple[str, ...]:
    """The words, if all of them are known.

    Raises:
      UnknownStrategyError: One is not, or recomputing is not among them.
    """
    unknown = [word for word in allow if word not in MAY_DO]
    if state := [word for word in unknown if word in STATE]:
        raise _no_plan_of_state(allow, state)
    if not unknown and "recompute" in allow:
        return allow
    raise UnknownStrategyError(
        f"plan(allow={allow!r}) asks for what the planner cannot decide.",
        got=", ".join(map(repr, unknown)) or "no recomputation",
        needed='"recompute", and beside it "offload" where values may wait on the host, "partition" where they may'
        " wait as shards over a mesh",
        advice='allow=("recompute",), ("recompute", "offload"), ("recompute", "partition") or all three',
        unknown=tuple(unknown),
    )


def require_mesh(allow: tuple[str, ...], graph: Graph) -> None:
    """Refuses to keep shards where there is nothing to keep them on.

    Raises:
      UnsupportedDecisionError: Partitions are allowed, and the step has no mesh of several devices.
    """
    if "partition" not in allow or any(size > 1 for _, size in graph.mesh):
        return
    axes = ", ".join(f"{axis} ({size} device)" for axis, size in graph.mesh)
    raise UnsupportedDecisionError(
        f"plan(allow={allow!r}) asks for values as shards, and the step is on no mesh of several devices.",
        got=f"mesh axes: {axes or 'none: no argument has a sharding'}",
        needed="arguments with shardings, or a step jitted with in_shardings, over a mesh axis of two devices or more",
        advice=f"allow={tuple(word for word in allow if word != 'partition')!r}, or shardings over the target's devices"
        ' (target="h200:8")',
        decisions=(Partition(),),
    )


def _no_plan_of_state(allow: tuple[str, ...], state: list[str]) -> UnknownStrategyError:
    return UnknownStrategyError(
        f"plan(allow={allow!r}) asks for arguments of the step on the host; a plan moves residuals alone.",
        got=", ".join(map(repr, state)),
        needed='"recompute" and "offload"; parameters and optimiser state lie where the caller puts them',
        advice="jax.device_put(state, sharding.with_memory_kind('pinned_host')) before the step, and in the step"
        " jax.device_put(leaf, jax.memory.Space.Device) where it is read",
        unknown=tuple(state),
    )
