"""Runs a program under a budget and counts: what is evicted, what is recomputed, how the memory falls apart.

A simulation knows sizes and prices, not arrays. It is online: at each statement the engine sees what was issued before,
and nothing of what comes. Read after `engine` and `simulation`.
"""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from math import gcd
from multiprocessing import get_context
from typing import Any, TypedDict, Unpack, overload

from jaxckpt._units import budget_bytes, budget_fraction
from jaxckpt.dynamic.engine import run
from jaxckpt.dynamic.evictors import Cost, Evictor, evictor as rule_of
from jaxckpt.dynamic.from_graph import program_from_graph
from jaxckpt.dynamic.memory import Memory, published_memory
from jaxckpt.dynamic.program import Program, ProgramError
from jaxckpt.dynamic.simulation import Event, Simulation, events_of, simulation_of
from jaxckpt.dynamic.state import Machine, Task, layout, machine_of
from jaxckpt.ir import Graph

Budget = int | float | str | None
Budgets = list[Budget] | list[int] | list[float] | list[str] | tuple[Budget, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options of all that runs a program or a step: `simulate`, `address_map`, `run` and `Runner`.

    Each of these takes the fields as keywords too; a keyword goes before the field of `options`.

    Attributes:
      evictor: What is evicted: a name in `EVICTORS`, or a rule.
      memory: What the budget means; by default what the rule was published with.
      limit: A run is given up when recomputations are this many times the program's price or its number of calls.
      seed: Of what is drawn at random.

    Example:
      >>> RunOptions(evictor="dtr_eq").rule.cost.name
      'CLASSES'
    """

    evictor: str | Evictor = "coop"
    memory: Memory | None = None
    limit: float = 100
    seed: int = 0

    @property
    def rule(self) -> Evictor:
        """The rule that is meant; UnknownEvictorError where there is none of its name."""
        return rule_of(self.evictor)


AS_PUBLISHED = RunOptions()
"""Coop in its own memory."""


class RunKeywords(TypedDict, total=False):
    """The fields of `RunOptions` as keywords of a function."""

    evictor: str | Evictor
    memory: Memory | None
    limit: float
    seed: int


class SimulationKeywords(RunKeywords, total=False):
    """Keywords of `simulate` besides the budget."""

    record: bool
    processes: int
    options: RunOptions


@overload
def simulate(what: Graph | Program, *, budget: Budget = None, **keywords: Unpack[SimulationKeywords]) -> Simulation: ...
@overload
def simulate(
    what: Graph | Program, *, budget: Budgets, **keywords: Unpack[SimulationKeywords]
) -> tuple[Simulation, ...]: ...
def simulate(
    what: Graph | Program,
    *,
    budget: Budget | Budgets = None,
    record: bool = False,
    processes: int = 1,
    options: RunOptions = AS_PUBLISHED,
    **keywords: Unpack[RunKeywords],
) -> Simulation | tuple[Simulation, ...]:
    """Runs a program under a budget.

    Args:
      what: A program, or a traced step, priced at the bytes that its ops read and write.
      budget: Bytes of all that is in memory, constants with it: an amount, or a share of what the program takes
        without a budget (a float in (0, 1], "50%"); None for no limit. Several make one simulation each.
      record: Whether `Simulation.events` says all that happened.
      processes: Among how many several budgets are divided. With more than 1 a script must have its calls under
        `if __name__ == "__main__":`, since each process imports the script again.
      options: The rule, its memory, and when a run is given up.
      **keywords: Fields of `options`, before which they go.

    Returns:
      A simulation for each budget, in their order. Not finishing is a result, not an error.

    Raises:
      BudgetError: A budget is no amount of memory.
      UnknownEvictorError: There is no such rule.

    Example:
      >>> from jaxckpt.dynamic import simulate, unit_chain
      >>> simulate(unit_chain(16), budget=8, evictor="dtr").operations
      41
      >>> [s.operations for s in simulate(unit_chain(16), budget=[4, 6], evictor="lru")]
      [100, 56]
    """
    options = replace(options, **keywords)
    program = program_from_graph(what) if isinstance(what, Graph) else what
    budgets: Sequence[Budget] = budget if isinstance(budget, (list, tuple)) else [budget]
    program = program.priced_by_bytes() if options.rule.by_bytes else program
    tasks = [replace(task_of(program, each, options), record=record) for each in budgets]
    found = _all(program, tasks, processes)
    return tuple(found) if isinstance(budget, (list, tuple)) else found[0]


def unlimited_bytes(program: Program) -> int:
    """Peak of bytes in memory without a budget, of which shares of a budget are shares.

    Example:
      >>> from jaxckpt.dynamic import unit_chain
      >>> unlimited_bytes(unit_chain(16))
      16
    """
    return _one(layout(program), _PLAIN).peak_bytes


def min_budget(
    what: Graph | Program,
    *,
    unit_bytes: int | None = None,
    options: RunOptions = AS_PUBLISHED,
    **keywords: Unpack[RunKeywords],
) -> int:
    """A least budget under which a program completes, by bisection.

    A budget suffices if the program comes to its end, is not given up at `limit` before, and keeps within the budget.
    The bisection ends between a budget that suffices and one that is smaller by one unit and does not. Evictors are
    heuristics: a smaller budget may suffice where that one does not, and a larger one may fail.

    Args:
      what: A program, or a traced step, as for `simulate`.
      unit_bytes: The unit of budgets; by default the greatest common divisor of all sizes.
      options: The rule, its memory, and when a run is given up.
      **keywords: Fields of `options`, before which they go.

    Returns:
      Bytes of all that is in memory, constants with it; a multiple of the unit.

    Raises:
      BudgetError: The unit is below one byte.
      ProgramError: The program does not run to its end without a budget either.
      UnknownEvictorError: There is no such rule.

    Example:
      >>> from jaxckpt.dynamic import min_budget, unit_chain
      >>> min_budget(unit_chain(16), evictor="dtr"), min_budget(unit_chain(16), evictor="lru", limit=1)
      (3, 6)

    Complexity: a simulation for each bit of the budget, counted in units.
    """
    options = replace(options, **keywords)
    program = program_from_graph(what) if isinstance(what, Graph) else what
    program = program.priced_by_bytes() if options.rule.by_bytes else program
    parts, task = layout(program), task_of(program, None, options)
    alignment = task.memory.alignment
    sizes = (-(-tensor.size_bytes // alignment) * alignment for tensor in program.tensors)
    unit = (gcd(*sizes) or 1) if unit_bytes is None else budget_bytes(unit_bytes)
    if not (unlimited := _one(parts, task)).ok:  # then no budget suffices
        raise ProgramError(
            "min_budget: the program does not run to its end, whatever the budget.",
            got=unlimited.reason,
            needed="a program that reads no value after it was freed for good",
            advice="release the value that is named after its last reader",
        )
    # Invariant: `low` units do not suffice, `high` do.
    low, high = 0, 1
    while not _suffices(parts, replace(task, budget=high * unit)):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if _suffices(parts, replace(task, budget=middle * unit)):
            high = middle
        else:
            low = middle
    return high * unit


def _suffices(parts: Mapping[str, Any], task: Task) -> bool:
    found = _one(parts, task)
    return found.ok and found.peak_bytes <= (task.budget or 0)


_PLAIN = Task(budget=None, rule=Evictor(name="none", cost=Cost.LOCAL), memory=Memory())


def task_of(program: Program, budget: Budget, options: RunOptions) -> Task:
    """The task of running a program under a budget: shares are of what the program takes without one."""
    size_bytes = None
    if budget is not None:
        share = budget_fraction(budget) is not None
        size_bytes = budget_bytes(budget, baseline_bytes=unlimited_bytes(program) if share else None)
    return Task(
        budget=size_bytes,
        rule=options.rule,
        memory=options.memory or published_memory(options.rule.name),
        most_recompute_price=options.limit * program.base_price,
        most_recomputations=int(min(options.limit * (len(program.calls) + 1), 2**62)),
        seed=options.seed,
    )


def _all(program: Program, tasks: list[Task], processes: int) -> list[Simulation]:
    parts = layout(program)
    run(machine_of(parts, _PLAIN), 0)  # compiled before it is needed, and not in the seconds of a simulation
    if len(tasks) == 1 or processes == 1:
        return [_one(parts, task) for task in tasks]
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        return list(pool.map(partial(_one, parts), tasks))


def _one(parts: Mapping[str, Any], task: Task) -> Simulation:
    machine = machine_of(parts, task)
    begin = time.perf_counter()
    run(machine, len(machine.statements))
    run_s = time.perf_counter() - begin
    events: tuple[Event, ...] = ()
    if task.record:
        events = tuple(events_of(ended(parts, task, record=int(machine.now[0].events))))
    return simulation_of(task, machine, run_s=run_s, events=events)


def ended(parts: Mapping[str, Any], task: Task, *, record: int = 0) -> Machine:
    """The machine after a run, with space for so many events."""
    machine = machine_of(parts, task, record=record)
    run(machine, len(machine.statements))
    return machine
