"""Options of planning: what a planner may decide, under which policy, with how many compiles."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, TypedDict

from jaxckpt._errors import ArgumentError, UnknownStrategyError, UnsupportedDecisionError, closest_names
from jaxckpt.ir import Graph, Partition
from jaxckpt.policy import Policy
from jaxckpt.solve import Offloading

_DECISIONS = ("recompute", "offload", "partition", "chunk", "state")
_STATE = ("offload_parameters", "offload_optimizer_state")
"""Words that users of other tools try. They are about arguments of the step, which lie where the caller puts them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """Options of `jaxckpt.plan`, `Planner`, `pareto`, `max_batch` and `jit`.

    Each of these takes the fields as keywords too; a keyword overrides the field of `options`.

    Attributes:
      allow: Decisions that the planner may choose besides saving, one word or several: "recompute", and optionally
        "offload" (to the host), "partition" (as shards over a mesh axis on which the value is replicated), "chunk" (a
        loss head, or another region that treats rows alike, runs in pieces of rows, which takes sums over rows in
        another order) and "state" (optimiser state is in host memory between steps: arguments that are donated and that
        only the update reads).
      policy: A policy, its path, or the name of a ready policy. Decisions of its rules, and of rules of marks in the
        step, are required, except for rules of strength "prefer". The planner decides everything else.
      offload: Limits of offloading; None for the target's own bandwidth and no further limit.
      compiler_options: XLA options as pairs of name and value; they override those of a jitted step.
      recompute_collectives: True if results of collectives of the forward pass may be recomputed; otherwise they are
        saved. Parameters that are gathered for use are gathered a second time in either case.
      max_compiles: The most compiles for one plan. Before a budget is refused, plans of least memory that should fit
        are compiled beyond this number.

    Raises:
      UnknownStrategyError: `allow` has an unknown word, or lacks "recompute".
      ArgumentError: `max_compiles` is no number of compiles.

    Example:
      >>> PlanOptions(allow=("recompute", "offload"), max_compiles=8).allow
      ('recompute', 'offload')
    """

    allow: tuple[str, ...] = ("recompute",)
    policy: Policy | str | Path | None = None
    offload: Offloading | None = None
    compiler_options: Sequence[tuple[str, Any]] = ()
    recompute_collectives: bool = True
    max_compiles: int = 8

    def __post_init__(self) -> None:
        object.__setattr__(self, "allow", (self.allow,) if isinstance(self.allow, str) else tuple(self.allow or ()))
        if isinstance(self.max_compiles, bool) or not isinstance(self.max_compiles, int) or self.max_compiles < 1:
            raise ArgumentError(
                f"plan(max_compiles={self.max_compiles!r}) is no number of compiles.",
                got=repr(self.max_compiles),
                needed="a whole number, at least 1",
                advice="max_compiles=8",
            )
        unknown = [word for word in self.allow if word not in _DECISIONS]
        if state := [word for word in unknown if word in _STATE]:
            raise _no_plan_of_state(self.allow, state)
        if unknown or "recompute" not in self.allow:
            raise UnknownStrategyError(
                f"plan(allow={self.allow!r}) is no set of decisions that the planner may choose.",
                got=", ".join(map(repr, unknown)) or "no recomputation",
                needed='"recompute", and with it "offload" where values may be sent to the host, "partition" where they'
                ' may be kept as shards over a mesh, "chunk" where a loss head may run in pieces of rows, "state" where'
                " optimiser state may be in host memory",
                advice='allow=("recompute",), ("recompute", "offload"), ("recompute", "partition"), ("recompute",'
                ' "chunk"), ("recompute", "state") or all five',
                unknown=tuple(unknown),
            )


class PlanKeywords(TypedDict, total=False):
    """The fields of `PlanOptions` as keywords of a function."""

    allow: str | tuple[str, ...]
    policy: Policy | str | Path | None
    offload: Offloading | None
    compiler_options: Sequence[tuple[str, Any]]
    recompute_collectives: bool
    max_compiles: int


def options_with(options: PlanOptions, keywords: Mapping[str, Any], *, called: Callable[..., Any]) -> PlanOptions:
    """The options with fields given as keywords; refuses other keywords, which may be meant for the step.

    `called` is the function or the class that got the keywords, for errors.

    Example:
      >>> import jaxckpt
      >>> options_with(PlanOptions(), {"max_compiles": 2}, called=jaxckpt.plan).max_compiles
      2
    """
    known = [each.name for each in fields(PlanOptions)]
    unknown = [name for name in keywords if name not in known]
    if not unknown:
        return replace(options, **keywords)
    parameters = signature(called).parameters.values()
    own = [each.name for each in parameters if each.kind is Parameter.KEYWORD_ONLY and each.name != "options"]
    closest = closest_names(unknown[0], (*known, *own))
    raise ArgumentError(
        f"{called.__name__} has no option {unknown[0]!r}{''.join(f'; the closest is {each!r}' for each in closest)}.",
        got=", ".join(f"{name}=..." for name in unknown),
        needed=", ".join((*own, *known)),
        advice="".join(f"{each}=...; " for each in closest)
        + f"for a keyword argument of the step: jaxckpt.Step(step, args, kwargs={{{unknown[0]!r}: ...}}) in the"
        " place of the step and its arguments",
        unknown=tuple(unknown),
    )


def require_mesh(allow: tuple[str, ...], graph: Graph) -> None:
    """Refuses to keep shards where there is no mesh of several devices to keep them on."""
    if "partition" not in allow or any(size > 1 for _, size in graph.mesh):
        return
    axes = ", ".join(f"{axis} ({size} device)" for axis, size in graph.mesh)
    raise UnsupportedDecisionError(
        f"plan(allow={allow!r}) allows shards, and the step is on no mesh of several devices.",
        got=f"mesh axes: {axes or 'none: no argument has a sharding'}",
        needed="arguments with shardings, or a step jitted with in_shardings, over a mesh axis of two devices or more",
        advice=f"allow={tuple(word for word in allow if word != 'partition')!r}, or shardings over the target's devices"
        ' (target="h200:8")',
        decisions=(Partition(),),
    )


def _no_plan_of_state(allow: tuple[str, ...], state: list[str]) -> UnknownStrategyError:
    return UnknownStrategyError(
        f"plan(allow={allow!r}) has a word of other tools.",
        got=", ".join(map(repr, state)),
        needed='"recompute", and with it "state" for optimiser state in host memory; parameters are where the caller'
        " puts them",
        advice='allow=("recompute", "state"); for parameters jax.device_put(leaf, sharding.with_memory_kind('
        "'pinned_host')) before the step, and in the step jax.device_put(leaf, jax.memory.Space.Device)",
        unknown=tuple(state),
    )
