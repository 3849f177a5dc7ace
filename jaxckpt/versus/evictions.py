"""Rules of eviction side by side, over shares of a step's memory, with what a static plan costs at the same budgets.

Two bases. "kernels" is the step as it compiles: what is fused is one kernel, values are those in memory, seconds those
of the target; only there can a static plan stand beside the rules. "eager" is the step as an eager framework would run
it, every op a kernel and every value in memory, which is what the papers show.

Read after `jaxckpt.dynamic` and `jaxckpt.solve`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jaxckpt._errors import ComparisonError
from jaxckpt._shown import Shown
from jaxckpt.dynamic import (
    MEMORIES,
    Evictor,
    Memory,
    Mode,
    Program,
    Simulation,
    eager_seconds,
    evictor,
    live_bytes,
    program_from_graph,
    simulate,
)
from jaxckpt.solve import OptimalSolver, Problem, program_of_kernels
from jaxckpt.target import Target
from jaxckpt.trace import trace_step

RATIOS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
EVICTORS = ("dtr", "dte", "coop")
OPTIMUM = "static optimum"
"""The name of the fourth line."""
_BASES = ("kernels", "eager")
_AS_RUN = {"dtr": "dtr_eq"}
"""DTR as it is run: classes stand for neighbourhoods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionRow:
    """One rule at one budget.

    Attributes:
      evictor: Its name, or `OPTIMUM`.
      ratio: Of the memory without a budget, arguments included.
      budget_bytes: The same in bytes.
      ok: Whether the step came to its end.
      overhead: Seconds over those without a budget; 0 where it did not end.
      free_share: Fragmentation: what was free, on average, when a request was refused.
      search_s: Seconds spent in searches.
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
    search_s: float = 0.0
    run_s: float = 0.0
    recomputations: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evictions(Shown):
    """Rules of eviction on one step.

    Attributes:
      step: Its name.
      target: Whose seconds they are.
      basis: "kernels" or "eager".
      calls: Kernels, or ops.
      whole_bytes: The memory without a budget, arguments included: what ratios are of.
      argument_bytes: Of these the arguments.
      rows: By rule, then by ratio.
    """

    step: str
    target: str
    basis: str
    calls: int
    whole_bytes: int
    argument_bytes: int
    rows: tuple[EvictionRow, ...]

    def rows_of(self, name: str) -> tuple[EvictionRow, ...]:
        """The rows of one rule, or of the optimum."""
        return tuple(row for row in self.rows if row.evictor == name)

    @property
    def evictors(self) -> tuple[str, ...]:
        """The names, in their order."""
        return tuple(dict.fromkeys(row.evictor for row in self.rows))


def compare_evictors(
    step: Callable[..., Any],
    *args: Any,
    evictors: Sequence[str] = EVICTORS,
    ratios: Sequence[float] = RATIOS,
    target: Target | str = "h200",
    basis: str = "kernels",
    optimum: bool = True,
    limit: float = 10,
    donate_argnums: int | Sequence[int] = (),
    static_argnums: int | Sequence[int] = (),
    processes: int | None = 1,
    progress: Callable[[str], None] | None = None,
) -> Evictions:
    """Simulates rules of eviction on a step. All run in one kind of memory: a block with addresses and nothing outside.

    Args:
      step: A function, plain or jitted; it is traced, not run.
      *args: Its arguments, or descriptions of them.
      evictors: Names of `jaxckpt.dynamic.EVICTORS`. "dtr" is simulated with classes.
      ratios: Budgets, as shares of the memory without one.
      target: Whose seconds count.
      basis: "kernels" or "eager".
      optimum: Whether our static optimum is a further line; with kernels only.
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
    if basis not in _BASES:
        raise ComparisonError(
            f"compare_evictors(basis={basis!r}) names no basis.",
            got=repr(basis),
            needed="one of " + ", ".join(map(repr, _BASES)),
            advice='basis="kernels"',
        )
    say = progress or (lambda _: None)
    rules = {name: replace(evictor(_AS_RUN.get(name, name)), by_bytes=False) for name in evictors}
    say("tracing the step")
    traced = trace_step(step, *args, donate_argnums=donate_argnums, static_argnums=static_argnums)
    chosen = Target(target) if isinstance(target, str) else target
    problem = Problem(graph=traced.graph, rates=chosen.rates)
    program, outside_bytes = _program(problem, basis)
    whole_bytes = outside_bytes + live_bytes(program)
    budgets = [int(ratio * whole_bytes) for ratio in ratios]
    rows: list[EvictionRow] = []
    for name, rule in rules.items():
        say(f"simulating {name} over {len(program.calls)} {'kernels' if basis == 'kernels' else 'ops'}")
        inside = [max(1, budget - outside_bytes) for budget in budgets]
        found = simulate(
            program, budget=inside, evictor=rule, memory=_memory(rule, basis), limit=limit, processes=processes
        )
        rows += [_row(name, r, b, s) for r, b, s in zip(ratios, budgets, found, strict=True)]
    if optimum and basis == "kernels":
        say("solving for the static optimum")
        rows += _optima(problem, ratios, [budget - outside_bytes for budget in budgets])
    return Evictions(
        step=traced.name,
        target=chosen.name,
        basis=basis,
        calls=len(program.calls),
        whole_bytes=whole_bytes,
        argument_bytes=traced.graph.argument_bytes,
        rows=tuple(rows),
    )


def _program(problem: Problem, basis: str) -> tuple[Program, int]:
    """What is simulated, and bytes that are there beside it all the time."""
    graph = problem.graph
    if basis == "kernels":
        return program_of_kernels(problem), graph.argument_bytes
    prices_ns = [1e9 * seconds for seconds in eager_seconds(graph, problem.rates)]
    return program_from_graph(graph, prices=prices_ns), 0


def _memory(rule: Evictor, basis: str) -> Memory:
    memory = MEMORIES["coop"] if rule.name == "coop" else Memory(mode=Mode.HARD, drops_again=True)
    return memory if basis == "eager" else replace(memory, small_bytes=0)


def _row(name: str, ratio: float, budget_bytes: int, found: Simulation) -> EvictionRow:
    return EvictionRow(
        evictor=name,
        ratio=ratio,
        budget_bytes=budget_bytes,
        ok=found.ok,
        overhead=found.overhead if found.ok else 0.0,
        free_share=found.free_share,
        search_s=found.search_s,
        run_s=found.run_s,
        recomputations=found.recomputations,
        reason=f"{found.status}: {found.reason}" if found.reason else "",
    )


def _optima(problem: Problem, ratios: Sequence[float], temp_bytes: Sequence[int]) -> list[EvictionRow]:
    solver = OptimalSolver(problem)
    base = solver.unplanned.prediction
    assert base is not None, "solvers predict what they plan"
    rows = []
    for ratio, budget in zip(ratios, temp_bytes, strict=True):
        made = solver.solve(max(0, budget)).prediction
        assert made is not None, "solvers predict what they plan"
        ok = made.temp_bytes <= budget
        rows.append(
            EvictionRow(
                evictor=OPTIMUM,
                ratio=ratio,
                budget_bytes=budget + problem.graph.argument_bytes,
                ok=ok,
                overhead=made.step_s / base.step_s if ok else 0.0,
                recomputations=made.recomputed_ops,
                reason="" if ok else "out of memory: no plan is predicted to fit",
            )
        )
    return rows
