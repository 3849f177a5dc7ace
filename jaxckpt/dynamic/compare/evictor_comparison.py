"""Rules of eviction side by side, over shares of a step's memory, with what a static plan costs at the same budgets.

An evictor recomputes single values at any time; a static plan recomputes each stage once, and pays for the barriers
that keep XLA from eliminating the recomputation. With `frozen`, the decisions of an evictor also become a plan, so that
one model predicts both.

Read after `unrolled_training`.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Unpack

from jaxckpt._progress import Progress, silent
from jaxckpt._shown import Shown
from jaxckpt._step import Step
from jaxckpt.dynamic.compare.unrolled_training import TrainingKeywords, TrainingOptions, trained_step
from jaxckpt.dynamic.program import Program
from jaxckpt.dynamic.simulator import RunOptions, simulate, unlimited_bytes
from jaxckpt.dynamic.strategies import sweep_evicted
from jaxckpt.ir import GraphPlan
from jaxckpt.machine import Target
from jaxckpt.solve import OptimalSolver, Problem

OPTIMUM = "static optimum"
"""Name of the rows of the static optimum."""
FROZEN = "{} as a plan"
"""The name of a rule's line where its decisions are a plan."""


_COUNTED = ("ok", "free_share", "largest_free_share", "searches", "search_s", "run_s", "recomputations")
"""Fields of a simulation that are those of its row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionOptions(TrainingOptions):
    """Options of `compare_evictors`.

    Attributes:
      ratios: Budgets, as shares of the memory without one.
      optimum: Whether our static optimum is a further line; with kernels only.
      frozen: Whether what each rule does is a line as a plan, too; with kernels only.
      processes: Among which the budgets of a rule are divided.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jaxckpt import dynamic
      >>> step = jax.grad(lambda w, x: jnp.tanh(jnp.tanh(x @ w) @ w).sum())
      >>> args = jnp.eye(8), jnp.ones((64, 8))
      >>> options = dynamic.EvictionOptions(evictors=["dtr", "coop"], ratios=[1.0], optimum=False)
      >>> found = dynamic.compare_evictors(step, *args, options=options)
      >>> [row.evictor for row in found.rows]
      ['dtr', 'coop']
    """

    ratios: Sequence[float] = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    optimum: bool = True
    frozen: bool = False
    processes: int = 1


_DEFAULT = EvictionOptions()


class EvictionKeywords(TrainingKeywords, total=False):
    """The fields of `EvictionOptions` as keywords of a function."""

    ratios: Sequence[float]
    optimum: bool
    frozen: bool
    processes: int


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

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jaxckpt import dynamic
      >>> step = jax.grad(lambda w, x: jnp.tanh(jnp.tanh(x @ w) @ w).sum())
      >>> args = jnp.eye(8), jnp.ones((64, 8))
      >>> found = dynamic.compare_evictors(step, *args, evictors=["dtr"], ratios=[1.0], optimum=False)
      >>> (row,) = found.rows
      >>> row.evictor, row.ok, row.overhead, row.recomputations
      ('dtr', True, 1.0, 0)
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
      unlimited_bytes: The memory without a budget, arguments included: what ratios are of.
      argument_bytes: Of these the arguments.
      rows: By rule, then by ratio.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jaxckpt import dynamic
      >>> step = jax.grad(lambda w, x: jnp.tanh(jnp.tanh(x @ w) @ w).sum())
      >>> args = jnp.eye(8), jnp.ones((64, 8))
      >>> found = dynamic.compare_evictors(step, *args, evictors=["dtr"], ratios=[1.0], optimum=False)
      >>> found.rules, found.steps, found.rows[0].budget_bytes == found.unlimited_bytes
      (('dtr',), 3, True)
    """

    _report: ClassVar[str] = "jaxckpt.dynamic.compare.report:evictions_report"

    step: str
    target: str
    basis: str
    steps: int
    calls: int
    unlimited_bytes: int
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
    options: EvictionOptions = _DEFAULT,
    donate_argnums: int | Sequence[int] = (),
    static_argnums: int | Sequence[int] = (),
    progress: Progress | None = None,
    **keywords: Unpack[EvictionKeywords],
) -> Evictions:
    """Simulates rules of eviction on a step. All run in one kind of memory: a block with addresses and nothing outside.

    Args:
      step: A function, plain or jitted; it is traced, not run.
      *args: Its arguments, or descriptions of them.
      options: The rules, the budgets, and how the step is trained.
      donate_argnums: As `jaxckpt.plan`.
      static_argnums: As `jaxckpt.plan`.
      progress: Called with a sentence before each longer piece of work.
      **keywords: Fields of `options`, before which they go.

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
    options = replace(options, **keywords)
    say, runs = progress or silent, options.runs()
    say("tracing the step")
    called = Step.of(step, args, donate_argnums=donate_argnums, static_argnums=static_argnums)
    step_name, problem, program = trained_step(called, options)
    most_bytes, calls = unlimited_bytes(program), f"{len(program.calls)} {'kernels' if options.by_kernels else 'ops'}"
    budgets = [(ratio, max(1, int(ratio * most_bytes))) for ratio in dict.fromkeys(options.ratios)]
    rows: list[EvictionRow] = []
    for name, run in runs.items():
        say(f"simulating {name} over {calls}")
        rows += _simulated(name, program, budgets, run, options.processes)
    if options.optimum and options.by_kernels:
        say("solving for the static optimum")
        rows += _plans(OPTIMUM, problem, budgets, OptimalSolver(problem).solve)
    for name in runs if options.frozen and options.by_kernels else ():
        say(f"making plans of what {name} does")
        plans = tuple(sweep_evicted(problem, evictor=name))
        rows += _plans(FROZEN.format(name), problem, budgets, partial(_fastest, plans))
    return Evictions(
        step=step_name,
        target=Target(options.target).name,
        basis=options.basis,
        steps=options.steps,
        calls=len(program.calls) // options.steps,
        unlimited_bytes=most_bytes,
        argument_bytes=problem.graph.argument_bytes,
        rows=tuple(rows),
    )


_Budgets = Sequence[tuple[float, int]]
"""Ratios with their bytes."""


def _simulated(name: str, program: Program, budgets: _Budgets, run: RunOptions, processes: int) -> list[EvictionRow]:
    found = simulate(program, budget=[budget for _, budget in budgets], processes=processes, options=run)
    return [
        EvictionRow(
            **{field: getattr(simulation, field) for field in _COUNTED},
            evictor=name,
            ratio=ratio,
            budget_bytes=budget,
            overhead=simulation.overhead if simulation.ok else 0.0,
            reason=f"{simulation.status}: {simulation.reason}" if simulation.reason else "",
        )
        for (ratio, budget), simulation in zip(budgets, found, strict=True)
    ]


def _plans(name: str, problem: Problem, budgets: _Budgets, solve: Callable[[int], GraphPlan]) -> Iterator[EvictionRow]:
    """A row a budget for plans, which are given the bytes of temporaries that they may take."""
    base_s = problem.predict(GraphPlan(fingerprint=problem.graph.fingerprint)).step_s
    argument_bytes = problem.graph.argument_bytes  # results take the places of donated arguments
    for ratio, budget in budgets:
        begin = time.perf_counter()
        made = solve(max(0, budget - argument_bytes)).predicted
        ok = made.temp_bytes + argument_bytes <= budget
        yield EvictionRow(
            evictor=name,
            ratio=ratio,
            budget_bytes=budget,
            ok=ok,
            overhead=made.step_s / base_s if ok else 0.0,
            run_s=time.perf_counter() - begin,
            recomputations=made.recomputed_ops,
            reason="" if ok else "out of memory: no plan is predicted to fit",
        )


def _fastest(plans: Sequence[GraphPlan], temp_bytes: int) -> GraphPlan:
    """The fastest that fits by its prediction; the smallest where none does."""
    fitting = [plan for plan in plans if plan.predicted.temp_bytes <= temp_bytes]
    if fitting:
        return min(fitting, key=lambda plan: plan.predicted.step_s)
    return min(plans, key=lambda plan: plan.predicted.temp_bytes)
