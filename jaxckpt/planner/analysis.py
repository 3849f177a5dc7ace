"""Where a step's residuals are, before anything is decided: bytes, cost of recomputing, readers, by scope.

Nothing is compiled. Bytes are those of materialised arrays, by the fusion model: a residual inside a kernel is counted
as the arrays that the kernel reads, each once. The numbers of a plan come from the compiler (`Planner`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from jaxckpt._shown import Shown
from jaxckpt._step import Step
from jaxckpt._units import format_bytes
from jaxckpt.ir import Graph, Phase
from jaxckpt.machine import Target
from jaxckpt.planner.user_plan import Described, describe
from jaxckpt.solve import Problem, solve
from jaxckpt.trace import trace_step


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeResiduals:
    """Residuals of one scope, and the ops of the backward that read them.

    `residual_bytes` are as if each residual were an array in memory, as JAX's equations have it. `kept_bytes` are
    arrays that a compiler saves if nothing is recomputed, bytes per device; the other figures are of these arrays.
    """

    scope: str
    residual_count: int
    residual_bytes: int
    kept_bytes: int
    largest: Described | None
    recompute_s: float
    reader_count: int


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Analysis(Shown):
    """A step's residuals, by scope.

    Attributes:
      target: The machine whose rates the estimates use.
      scopes: In the order in which the forward pass meets them; scopes without residuals are left out.
      argument_bytes: Arguments, bytes per device.
      constant_bytes: Arrays that the step closes over.
      unplanned_bytes: Predicted total of the step as it is.
      smallest_bytes: Predicted total with everything recomputed between the best cuts. A plan that saves some values
        may take less.
      unplanned_s: Estimated seconds of the step as it is.
      unpriced: Primitives whose work nobody knows, with how often each occurs.
      phases_source: "names" where forward and backward were told apart by JAX's own marks, "structure" else.
    """

    _report: ClassVar[str] = "jaxckpt.report.plan:analysis_report"

    step: str
    target: str
    scopes: tuple[ScopeResiduals, ...]
    op_count: int
    argument_bytes: int
    constant_bytes: int
    unplanned_bytes: int
    smallest_bytes: int
    unplanned_s: float
    unpriced: tuple[tuple[str, int], ...]
    phases_source: str

    def summary(self) -> str:
        """The figures that matter most, in one line."""
        least = f"{format_bytes(self.smallest_bytes)} with everything recomputed"
        totals = f"{format_bytes(self.unplanned_bytes)} as it is, {least}"
        return (
            f"{self.step} on {self.target}: {format_bytes(self.kept_bytes)} kept for the backward; {totals}, predicted"
        )

    @property
    def residual_bytes(self) -> int:
        """Bytes of all residuals as JAX's equations have them; fusions keep many of them out of memory."""
        return sum(scope.residual_bytes for scope in self.scopes)

    @property
    def kept_bytes(self) -> int:
        """Arrays of all scopes that are saved from forward to backward, bytes per device."""
        return sum(scope.kept_bytes for scope in self.scopes)


def analyze(
    step: Callable[..., Any] | Step,
    *args: Any,
    target: Target | str = "h200",
    donate_argnums: int | Sequence[int] = (),
    static_argnums: int | Sequence[int] = (),
) -> Analysis:
    """Finds a training step's residuals and their bytes, by scope.

    Args:
      step: Loss, gradient and, if there is one, the update: a function, plain or jitted; or a `jaxckpt.Step`.
      *args: Its arguments: arrays or `jax.ShapeDtypeStruct`s.
      target: The machine whose rates price recomputation; neither the device nor a package for it is needed.
      donate_argnums: Arguments whose memory the results may take.
      static_argnums: Arguments that are not traced.

    Returns:
      Predictions, not measurements: nothing is compiled.

    Raises:
      NoGradientError: The step has no backward pass.
      ArgumentError: An argument is neither an array nor a description of one.

    Example:
      >>> import jax, jax.numpy as jnp, jaxckpt
      >>> step = jax.grad(lambda w, x: jnp.tanh(jnp.tanh(x @ w) @ w).sum())
      >>> found = jaxckpt.analyze(step, jnp.eye(4), jnp.ones((2, 4)))
      >>> found.argument_bytes, found.smallest_bytes <= found.unplanned_bytes
      (96, True)
      >>> found.kept_bytes  # saved from the forward pass for the backward pass
      64
    """
    target = Target(target)
    call = Step.of(step, args, donate_argnums=donate_argnums, static_argnums=static_argnums)
    traced = trace_step(call.function, *call.args, kwargs=call.kwargs, **call.argnums)
    problem = Problem(graph=traced.graph, rates=target.rates)
    unplanned, full = (solve(problem, strategy).predicted for strategy in ("none", "full"))
    graph = traced.graph
    unpriced = problem.arithmetic.unpriced
    return Analysis(
        step=traced.name,
        target=target.name,
        scopes=_by_scope(problem),
        op_count=len(graph.ops),
        argument_bytes=graph.size_bytes(graph.inputs),
        constant_bytes=graph.size_bytes(graph.constants),
        unplanned_bytes=unplanned.total_bytes,
        smallest_bytes=full.total_bytes,
        unplanned_s=unplanned.step_s,
        unpriced=tuple((name, unpriced.count(name)) for name in dict.fromkeys(unpriced)),
        phases_source=traced.phases_source,
    )


def _by_scope(problem: Problem) -> tuple[ScopeResiduals, ...]:
    graph = problem.graph
    members: dict[str, list[int]] = {}
    for value in sorted(problem.needed | problem.read_after_forward):
        producer = graph.producer[value]
        assert producer is not None, "arguments are no residuals"
        members.setdefault(graph.ops[producer].scope, []).append(value)
    return tuple(_scope(problem, scope, values) for scope, values in members.items())


def _scope(problem: Problem, scope: str, values: list[int]) -> ScopeResiduals:
    graph = problem.graph
    arrays = problem.needed & problem.worth_saving & problem.fusion.materialised
    kept = [v for v in values if v in arrays]
    residuals = [v for v in values if v in problem.read_after_forward]
    producers = {op for v in kept if (op := graph.producer[v]) is not None}
    largest = max(kept, key=graph.residual_bytes, default=None)
    return ScopeResiduals(
        scope=scope,
        residual_count=len(residuals),
        residual_bytes=sum(map(graph.residual_bytes, residuals)),
        kept_bytes=sum(map(graph.residual_bytes, kept)),
        largest=None if largest is None else describe(graph, largest),
        recompute_s=sum(problem.op_s[op] for op in producers),
        reader_count=_readers_after_forward(graph, residuals),
    )


def _readers_after_forward(graph: Graph, values: list[int]) -> int:
    readers = {reader for value in values for reader in graph.readers[value]}
    return sum(graph.ops[reader].phase is not Phase.FORWARD for reader in readers)
