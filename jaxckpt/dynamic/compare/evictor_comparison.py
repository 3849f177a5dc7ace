"""Rules of eviction side by side, over shares of a step's memory, with what a static plan costs at the same budgets.

A rule that runs brings back single values whenever it wants; a static plan computes stages again, once, and pays for
what keeps the compiler from undoing it. What a rule has done can be made a plan too, which is `frozen`: there rule and
optimum are predicted by the same model.

Read after `unrolled_training`.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from jaxckpt._progress import Progress, silent
from jaxckpt._shown import Shown
from jaxckpt._step import Step
from jaxckpt.dynamic import Simulation, live_bytes, simulate
from jaxckpt.dynamic.compare.unrolled_training import EVICTORS, memory_of, rule_as_run, trained_step
from jaxckpt.dynamic.strategies import sweep_evicted
from jaxckpt.ir import GraphPlan
from jaxckpt.machine import Target
from jaxckpt.solve import OptimalSolver, Problem

RATIOS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
OPTIMUM = "static optimum"
"""The name of the fourth line."""
FROZEN = "{} as a plan"
"""The name of a rule's line where its decisions are a plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionRow:
    """One rule at one budget.

    Attributes:
      evictor: Its name, `OPTIMUM`, or `FROZEN` with its name.
      ratio: Of the memory without a budget, arguments included.
      budget_bytes: The same in bytes.
      ok: Whether the step came to its end.
      overhead: Seconds over those without a budget; 0 where it did not end.
      free_share: Fragmentation: what was free, on average, when a request was refused.
      largest_free_share: The largest piece of that, on average.
      searches: For something to evict, one after the other.
      search_s: Seconds spent in them.
      run_s: Seconds of the whole simulation, or of the solver.
      recomputations: Calls run again.
      reason: Why it did not end; "" where it did.
    """

    evictor: str
    ratio: float
    budget_bytes: int
    ok: bool
    overhead: float
    free_share: float = 0.0
    largest_free_share: float = 0.0
    searches: int = 0
    search_s: float = 0.0
    run_s: float = 0.0
    recomputations: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Evictions(Shown):
    """Rules of eviction on one step.

    Attributes:
      step: Its name.
      target: Whose seconds they are.
      basis: "kernels" or "eager".
      steps: Training steps that the rules go through, one after the other.
      calls: Kernels, or ops, of one step.
      whole_bytes: The memory without a budget, arguments included: what ratios are of.
      argument_bytes: Of these the arguments.
      rows: By rule, then by ratio.
    """

    _report: ClassVar[str] = "jaxckpt.dynamic.compare.report:evictions_report"

    step: str
    target: str
    basis: str
    steps: int
    calls: int
    whole_bytes: int
    argument_bytes: int
    rows: tuple[EvictionRow, ...]

    def summary(self) -> str:
        """The figures that matter most, in one line."""
        ended = sum(row.ok for row in self.rows)
        names = ", ".join(self.evictors)
        return f"{self.step} on {self.target}: {names}; {ended} of {len(self.rows)} runs came to their end"

    def rows_of(self, name: str) -> tuple[EvictionRow, ...]:
        """The rows of one rule, or of the optimum."""
        return tuple(row for row in self.rows if row.evictor == name)

    @property
    def evictors(self) -> tuple[str, ...]:
        """The names, in their order."""
        return tuple(dict.fromkeys(row.evictor for row in self.rows))

    @property
    def rules(self) -> tuple[str, ...]:
        """The names of what was simulated: plans are left out."""
        frozen = {FROZEN.format(name) for name in self.evictors}
        return tuple(name for name in self.evictors if name != OPTIMUM and name not in frozen)


def compare_evictors(
    step: Callable[..., Any] | Step,
    *args: Any,
    evictors: Sequence[str] = EVICTORS,
    ratios: Sequence[float] = RATIOS,
    target: Target | str = "h200",
    basis: str = "kernels",
    steps: int = 3,
    optimum: bool = True,
    frozen: bool = False,
    limit: float = 10,
    donate_argnums: int | Sequence[int] = (),
    static_argnums: int | Sequence[int] = (),
    processes: int | None = 1,
    progress: Progress | None = None,
) -> Evictions:
    """Simulates rules of eviction on a step. All run in one kind of memory: a block with addresses and nothing outside.

    Args:
      step: A function, plain or jitted; it is traced, not run.
      *args: Its arguments, or descriptions of them.
      evictors: Names of `jaxckpt.dynamic.EVICTORS`. "dtr" is simulated with classes.
      ratios: Budgets, as shares of the memory without one.
      target: Whose seconds count.
      basis: "kernels" or "eager".
      steps: Training steps, each of which begins with the state that the one before has left in memory.
      optimum: Whether our static optimum is a further line; with kernels only.
      frozen: Whether what each rule does is a line as a plan, too; with kernels only.
      limit: A run is given up when recomputations are this many times the step.
      donate_argnums: As `jaxckpt.plan`.
      static_argnums: As `jaxckpt.plan`.
      processes: Among which the budgets of a rule are divided.
      progress: Called with a sentence before each longer piece of work.

    Raises:
      ComparisonError: There is no such basis.
      UnknownEvictorError: There is no such rule.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> step = jax.grad(lambda w, x: jnp.tanh(jnp.tanh(jnp.tanh(x @ w) @ w) @ w).sum())
      >>> found = compare_evictors(step, jnp.eye(8), jnp.ones((64, 8)), evictors=["dtr"], ratios=[1.0])
      >>> [(row.evictor, row.ok, row.overhead) for row in found.rows]
      [('dtr', True, 1.0), ('static optimum', True, 1.0)]
    """
    say = progress or silent
    rules = {name: rule_as_run(name) for name in evictors}
    say("tracing the step")
    called = Step.of(step, args, donate_argnums=donate_argnums, static_argnums=static_argnums)
    trained = trained_step(called, target=target, basis=basis, steps=steps)
    program, problem = trained.program, trained.problem
    whole_bytes = live_bytes(program)
    budgets = [int(ratio * whole_bytes) for ratio in ratios]
    rows: list[EvictionRow] = []
    for name, rule in rules.items():
        say(f"simulating {name} over {len(program.calls)} {'kernels' if basis == 'kernels' else 'ops'}")
        found = simulate(
            program, budget=budgets, evictor=rule, memory=memory_of(rule), limit=limit, processes=processes
        )
        rows += [_row(name, r, b, s) for r, b, s in zip(ratios, budgets, found, strict=True)]
    if optimum and basis == "kernels":
        say("solving for the static optimum")
        rows += _plans(OPTIMUM, problem, ratios, budgets, OptimalSolver(problem).solve)
    for name in rules if frozen and basis == "kernels" else ():
        say(f"making plans of what {name} does")
        plans = tuple(sweep_evicted(problem, evictor=name))
        rows += _plans(FROZEN.format(name), problem, ratios, budgets, partial(_fastest, plans))
    return Evictions(
        step=trained.name,
        target=trained.target,
        basis=basis,
        steps=steps,
        calls=len(program.calls) // steps,
        whole_bytes=whole_bytes,
        argument_bytes=problem.graph.argument_bytes,
        rows=tuple(rows),
    )


def _row(name: str, ratio: float, budget_bytes: int, found: Simulation) -> EvictionRow:
    return EvictionRow(
        evictor=name,
        ratio=ratio,
        budget_bytes=budget_bytes,
        ok=found.ok,
        overhead=found.overhead if found.ok else 0.0,
        free_share=found.free_share,
        largest_free_share=found.largest_free_share,
        searches=found.searches,
        search_s=found.search_s,
        run_s=found.run_s,
        recomputations=found.recomputations,
        reason=f"{found.status}: {found.reason}" if found.reason else "",
    )


def _plans(
    name: str, problem: Problem, ratios: Sequence[float], budgets: Sequence[int], solve: Callable[[int], GraphPlan]
) -> list[EvictionRow]:
    """A row a budget for plans, which are given the bytes of temporaries that they may take."""
    base_s = problem.predict(GraphPlan(fingerprint=problem.graph.fingerprint)).step_s
    argument_bytes = problem.graph.argument_bytes  # results take the places of donated arguments
    rows = []
    for ratio, budget in zip(ratios, budgets, strict=True):
        begin = time.perf_counter()
        made = solve(max(0, budget - argument_bytes)).prediction
        assert made is not None, "solvers predict what they plan"
        ok = made.temp_bytes + argument_bytes <= budget
        rows.append(
            EvictionRow(
                evictor=name,
                ratio=ratio,
                budget_bytes=budget,
                ok=ok,
                overhead=made.step_s / base_s if ok else 0.0,
                run_s=time.perf_counter() - begin,
                recomputations=made.recomputed_ops,
                reason="" if ok else "out of memory: no plan is predicted to fit",
            )
        )
    return rows


def _fastest(plans: Sequence[GraphPlan], temp_bytes: int) -> GraphPlan:
    """The fastest that fits by its prediction; the smallest where none does."""
    fitting = [plan for plan in plans if plan.predicted.temp_bytes <= temp_bytes]
    if fitting:
        return min(fitting, key=lambda plan: plan.predicted.step_s)
    return min(plans, key=lambda plan: plan.predicted.temp_bytes)
