"""What a planner may do with a residual besides saving it: words that callers give, checked."""

from jaxckpt._errors import UnknownStrategyError

MAY_DO = ("recompute", "offload")
"""What it can decide. Partitions, and what stands in no plan, are for policies to say."""

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
        needed='"recompute", and "offload" beside it where values may wait on the host',
        advice='allow=("recompute",) or allow=("recompute", "offload"); a policy can demand partitions',
        unknown=tuple(unknown),
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
