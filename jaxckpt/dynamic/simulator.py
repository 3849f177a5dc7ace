"""Runs a program under a budget and counts: what is evicted, what is recomputed, how the memory falls apart.

A simulation knows sizes and prices, not arrays. It is online: at each step the engine sees what was issued before, and
nothing of what comes. Read after `engine` and `outcome`.
"""

import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import overload

from jaxckpt._units import budget_bytes, budget_fraction
from jaxckpt.dynamic import state
from jaxckpt.dynamic.engine import run
from jaxckpt.dynamic.evictors import Cost, Evictor
from jaxckpt.dynamic.evictors import evictor as rule_of
from jaxckpt.dynamic.from_graph import program_from_graph
from jaxckpt.dynamic.memory import MEMORIES, Memory
from jaxckpt.dynamic.outcome import events_of, simulation_of
from jaxckpt.dynamic.program import Program
from jaxckpt.dynamic.simulation import Event, Simulation
from jaxckpt.dynamic.state import Task, machine_of
from jaxckpt.ir import Graph

Budget = int | float | str | None
Budgets = list[Budget] | list[int] | list[float] | list[str] | tuple[Budget, ...]


@overload
def simulate(
    what: Graph | Program,
    *,
    budget: Budget = None,
    evictor: str | Evictor = "coop",
    memory: Memory | None = None,
    limit: float = 100,
    seed: int = 0,
    record: bool = False,
    processes: int | None = None,
) -> Simulation: ...
@overload
def simulate(
    what: Graph | Program,
    *,
    budget: Budgets,
    evictor: str | Evictor = "coop",
    memory: Memory | None = None,
    limit: float = 100,
    seed: int = 0,
    record: bool = False,
    processes: int | None = None,
) -> tuple[Simulation, ...]: ...
def simulate(
    what: Graph | Program,
    *,
    budget: Budget | Budgets = None,
    evictor: str | Evictor = "coop",
    memory: Memory | None = None,
    limit: float = 100,
    seed: int = 0,
    record: bool = False,
    processes: int | None = None,
) -> Simulation | tuple[Simulation, ...]:
    """Runs a program under a budget.

    Args:
      what: A program, or a traced step, priced at the bytes that its ops read and write.
      budget: Bytes of all that is in memory, constants with it: an amount, or a share of what the program takes
        without a budget (a float in (0, 1], "50%"); None for no limit. Several make one simulation each.
      evictor: What is evicted: a name in `EVICTORS`, or a rule.
      memory: What the budget means; by default what the rule was published with.
      limit: A run is given up when recomputations are this many times the program's price or its number of calls.
      seed: Of what is drawn at random.
      record: Whether `Simulation.events` says all that happened.
      processes: Among which several budgets are divided; by default as many as there are processors and budgets.

    Returns:
      A simulation for each budget, in their order. Not finishing is a result, not an error.

    Raises:
      BudgetError: A budget is no amount of memory.
      UnknownEvictorError: There is no such rule.

    Example:
      >>> from jaxckpt.dynamic import simulate, unit_chain
      >>> simulate(unit_chain(16), budget=8, evictor="dtr").operations
      41
      >>> [s.operations for s in simulate(unit_chain(16), budget=[4, 6], evictor="lru", processes=1)]
      [100, 56]
    """
    rule = rule_of(evictor)
    program = program_from_graph(what) if isinstance(what, Graph) else what
    program = program.priced_by_bytes() if rule.by_bytes else program
    memory = memory or MEMORIES.get(rule.name, Memory())
    many = isinstance(budget, (list, tuple))
    budgets: Sequence[Budget] = budget if isinstance(budget, (list, tuple)) else [budget]
    tasks = [
        task_of(program, budget=b, rule=rule, memory=memory, limit=limit, seed=seed, record=record) for b in budgets
    ]
    found = _all(program, tasks, processes)
    return tuple(found) if many else found[0]


def live_bytes(program: Program) -> int:
    """The most bytes that are in memory at a time without a budget: what shares are shares of.

    Example:
      >>> from jaxckpt.dynamic import unit_chain
      >>> live_bytes(unit_chain(16))
      16
    """
    return _one(state.layout(program), _PLAIN).peak_bytes


_PLAIN = Task(budget=None, rule=Evictor(name="none", cost=Cost.LOCAL), memory=Memory())


def task_of(
    program: Program, *, budget: Budget, rule: Evictor, memory: Memory, limit: float, seed: int, record: bool = False
) -> Task:
    """The task of running a program under a budget: shares are of what the program takes without one."""
    size_bytes = None
    if budget is not None:
        share = budget_fraction(budget) is not None
        size_bytes = budget_bytes(budget, baseline_bytes=live_bytes(program) if share else None)
    most = int(min(limit * (len(program.calls) + 1), 2**62))
    return Task(
        budget=size_bytes,
        rule=rule,
        memory=memory,
        limit=limit * program.base_price,
        most=most,
        seed=seed,
        record=record,
    )


def _all(program: Program, tasks: list[Task], processes: int | None) -> list[Simulation]:
    parts = state.layout(program)
    if len(tasks) == 1 or processes == 1:
        return [_one(parts, task) for task in tasks]
    run(machine_of(parts, _PLAIN), 0)  # compiled before it is needed
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        return list(pool.map(partial(_one, parts), tasks))


def _one(parts: state.Layout, task: Task) -> Simulation:
    machine = machine_of(parts, task)
    begin = time.perf_counter()
    run(machine, len(machine.steps))
    run_s = time.perf_counter() - begin
    events: tuple[Event, ...] = ()
    if task.record:
        events = tuple(events_of(parts, ended(parts, task, record=int(machine.now[0].events))))
    return simulation_of(task, machine, run_s=run_s, events=events)


def ended(parts: state.Layout, task: Task, *, record: int = 0) -> state.Machine:
    """The machine after a run, with room for so many events."""
    machine = machine_of(parts, task, record=record)
    run(machine, len(machine.steps))
    return machine
