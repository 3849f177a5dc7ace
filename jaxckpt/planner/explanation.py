"""Explains a policy on a step, value by value: the rule that decided, the rules overruled, and the decision.

Regions and marked parts of the forward pass, which are recomputed together, are listed with what is saved around them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from posixpath import commonpath
from types import NoneType
from typing import Any, ClassVar

from jaxckpt._shown import Shown
from jaxckpt._step import Step
from jaxckpt._units import format_bytes
from jaxckpt.cost import strip_views
from jaxckpt.ir import Decision, Graph, Partition, Recompute, Save
from jaxckpt.machine import Target
from jaxckpt.planner.user_plan import Described, describe
from jaxckpt.policy import Policy, Region, Resolved, as_policy, region_inputs, region_outputs
from jaxckpt.solve import PolicyPlan, Problem, plan_from_policy, solve
from jaxckpt.trace import trace_step


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """The decision about one value, with the rule that made it."""

    value: Described
    by: str  # who decided: "rule 2 of "transformer"", "default of ...", "regions of ...", "the step's structure"
    wanted: str  # the decision as the rule says it
    carried_out: Decision | None  # the decision in the plan, or None where the value is left to the compiler
    why: str  # why `carried_out` is not `wanted`; "" where it is
    overruled: tuple[str, ...]  # rules that would have decided otherwise, the next first
    sharding: str = ""  # as it is saved: "P('data', None)", "replicated", "per device" in a shard_map; "": no mesh


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedRegion:
    """A connected part of the forward pass that is recomputed together: a policy's region, or the ops under a mark."""

    scope: str  # the innermost scope around all of its ops
    ops: int
    saved: tuple[Explained, ...]  # the values at its boundary that are kept, on the device or the host
    mesh: str  # the mesh that its ops name, else that of the step: "data=2 model=4"; "" without a mesh


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Explanation(Shown):
    """The effect of a policy, and of policies of marks, on a step.

    Attributes:
      policy: The name of the policy; "marks" if there are only marks.
      values: In the order in which the step computes them.
      regions: Those of the policy and of marks, in the order of the step; empty where decisions are by value alone.
      predicted_bytes: The predicted total, bytes per device.
      unplanned_bytes: The predicted total with everything saved.
      recompute_s: Estimated seconds of recomputed ops.

    Example:
      >>> import jax, jax.numpy as jnp, jaxckpt
      >>> step = jax.grad(lambda w, x: jnp.tanh(jnp.tanh(x @ w) @ w).sum())
      >>> explanation = jaxckpt.explain(step, jnp.eye(4), jnp.ones((2, 4)), policy="dots")
      >>> explanation.policy, explanation.predicted_bytes <= explanation.unplanned_bytes
      ('dots', True)
      >>> {each.value.primitive for each in explanation.values if each.wanted == "save"}
      {'dot_general'}
    """

    _report: ClassVar[str] = "jaxckpt.report.plan:explanation_report"

    step: str
    policy: str
    values: tuple[Explained, ...]
    predicted_bytes: int
    unplanned_bytes: int
    recompute_s: float
    regions: tuple[ExplainedRegion, ...] = ()

    def summary(self) -> str:
        """The figures that matter most, in one line."""
        total = f"{format_bytes(self.predicted_bytes)} predicted, {format_bytes(self.unplanned_bytes)} without it"
        return f"{self.policy} on {self.step}: {len(self.values)} values, {total}"

    def of(self, name: str) -> tuple[Explained, ...]:
        """The decisions about the values with this `checkpoint_name`."""
        return tuple(each for each in self.values if each.value.name == name)


def explain(
    step: Callable[..., Any] | Step,
    *args: Any,
    policy: Policy | str | Path | None = None,
    target: Target | str = "h200",
    donate_argnums: int | Sequence[int] = (),
    static_argnums: int | Sequence[int] = (),
) -> Explanation:
    """Finds for each residual the rule that decides about it, and the rules overruled.

    Args:
      step: Loss, gradient and, if there is one, the update: a function, plain or jitted; or a `jaxckpt.Step`.
      *args: Its arguments: arrays or `jax.ShapeDtypeStruct`s.
      policy: A policy, its path, or the name of a ready policy; None for only the policies of marks in the step.
      target: The machine whose rates price recomputation; nothing is compiled.
      donate_argnums: Arguments whose memory the results may take.
      static_argnums: Arguments that are not traced.

    Returns:
      One entry for each value, and one for each region with what is saved at its boundary; all figures are predictions.
      `print` shows both as tables.

    Raises:
      PolicyError: A rule matches nothing, or there is no such policy.
      NoGradientError, ArgumentError: The step has no backward pass, or an argument is no array.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> step = jax.grad(lambda w, x: jnp.sin(jnp.sin(x @ w) @ w).sum())
      >>> explanation = explain(step, jnp.eye(4), jnp.ones((2, 4)), policy="dots")
      >>> [(each.value.primitive, each.by) for each in explanation.values if "rule" in each.by]
      [('dot_general', 'rule 1 of "dots"'), ('dot_general', 'rule 1 of "dots"')]
    """
    chosen = as_policy(policy)
    call = Step.of(step, args, donate_argnums=donate_argnums, static_argnums=static_argnums)
    traced = trace_step(call.function, *call.args, kwargs=call.kwargs, **call.argnums)
    problem = Problem(graph=traced.graph, rates=Target(target).rates)
    followed = plan_from_policy(problem, chosen)
    values = tuple(_explained(problem, followed))
    prediction, unplanned = followed.plan.predicted, solve(problem, "none").predicted
    return Explanation(
        step=traced.name,
        policy=followed.plan.strategy,
        values=values,
        predicted_bytes=prediction.total_bytes,
        unplanned_bytes=unplanned.total_bytes,
        recompute_s=prediction.recompute_s,
        regions=tuple(_explained_region(problem, region, values) for region in followed.regions),
    )


def _explained(problem: Problem, followed: PolicyPlan) -> Iterator[Explained]:
    decided = {each.forward_value.id: each for each in followed.resolved}
    for value in sorted({*decided, *followed.plan.decisions}):
        carried_out = followed.plan.decisions.get(value)
        resolved = decided.get(value)
        yield Explained(
            value=describe(problem.graph, value),
            by="the step's structure" if resolved is None else f'{resolved.by.part} of "{resolved.by.policy.name}"',
            wanted="save" if resolved is None else type(resolved.decision).__name__.lower(),
            carried_out=carried_out,
            why="" if resolved is None else _why(problem, resolved, followed.plan.decisions),
            overruled=() if resolved is None else tuple(map(str, resolved.overruled)),
            sharding=_sharding(problem.graph, value, carried_out),
        )


def _explained_region(problem: Problem, region: Region, values: Sequence[Explained]) -> ExplainedRegion:
    graph = problem.graph
    read = {source for value in region_inputs(graph, region.ops) for source in problem.fusion.sources[value]}
    boundary = {strip_views(graph, value) for value in (*read, *region_outputs(graph, region.ops))}
    return ExplainedRegion(
        scope=region.scope or commonpath([graph.ops[op].scope for op in region.ops]),
        ops=len(region.ops),
        saved=tuple(
            each
            for each in values
            if each.value.value in boundary and not isinstance(each.carried_out, Recompute | NoneType)
        ),
        mesh=next((graph.ops[op].placement for op in sorted(region.ops) if graph.ops[op].placement), "")
        or " ".join(f"{axis}={size}" for axis, size in graph.mesh),
    )


def _sharding(graph: Graph, value: int, decision: Decision | None) -> str:
    """How a value is sharded while it is saved, as JAX writes it."""
    array = graph.values[value]
    if array.local:
        return "per device"
    axes = [list(each) for each in array.split] or [[] for _ in array.shape]
    if isinstance(decision, Partition) and decision.axis is not None and decision.dim is not None:
        axes[decision.dim].append(decision.axis)
    if not any(axes):
        return "replicated" if graph.mesh else ""
    return f"P({', '.join(_axes_text(each) for each in axes)})"


def _axes_text(axes: Sequence[str]) -> str:
    return repr(tuple(axes)) if len(axes) > 1 else repr(axes[0]) if axes else "None"


def _why(problem: Problem, resolved: Resolved, decisions: Mapping[int, Decision]) -> str:
    """Why the plan's decision about a value is not the rule's; "" where it is."""
    value = resolved.forward_value.id
    carried_out = decisions.get(value)
    if type(carried_out) is type(resolved.decision):  # a plan fills in when copies start, and the axis
        return ""
    if value in problem.graph.outputs:
        return "the step returns it"
    if value in problem.graph.results:
        return "its loop or branch gives it"
    if isinstance(resolved.decision, Save) and resolved.by.part == "default":
        return "saving by default leaves the step as it was written"
    if isinstance(carried_out, Save):
        return "it crosses to a later stage"
    shown = strip_views(problem.graph, value)
    if shown != value and shown in decisions:
        return "it is a view of an array that is kept"
    if isinstance(resolved.decision, Recompute):
        return "it leaves its stage as a view of what is kept"
    return _why_not_saved(problem, value)


def _why_not_saved(problem: Problem, value: int) -> str:
    """Why a plan does not save a value that no other decision is about."""
    if value in problem.fusion.argument_derived:
        return "it costs nothing to recompute"
    if value not in problem.worth_saving:
        return "it is no array of its own: compilers compute it where it is read"
    return "nothing reads it in the backward pass"
