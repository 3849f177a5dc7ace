"""What a planner may do with a residual besides saving it: words that callers give, checked."""

from jaxckpt._errors import UnknownStrategyError

MAY_DO = ("recompute", "offload")
"""What it can decide. Partitions, and what stands in no plan, are for policies to say."""


def checked_allow(allow: tuple[str, ...]) -> tuple[str, ...]:
    """The words, if all of them are known.

    Raises:
      UnknownStrategyError: One is not, or recomputing is not among them.
    """
    unknown = [word for word in allow if word not in MAY_DO]
    if not unknown and "recompute" in allow:
        return allow
    raise UnknownStrategyError(
        f"plan(allow={allow!r}) asks for what the planner cannot decide.",
        got=", ".join(map(repr, unknown)) or "no recomputation",
        needed='"recompute", and "offload" beside it where values may wait on the host',
        advice='allow=("recompute",) or allow=("recompute", "offload"); a policy can demand partitions',
        unknown=tuple(unknown),
    )
