"""Plans from evictors: what a rule evicts in a simulated run is recomputed, the rest is saved.

The step is simulated as kernels under one budget after the other. A forward value that was computed again in the
backward pass is recomputed, every other one that the backward needs is saved. A plan computes a value again once, and
what belongs to one stage together; a simulation does it whenever it wants to. So each record is tried with several cuts
into stages, with and without what crosses them, and the prediction of the plan counts, not that of the simulation.

The plans are the same for every budget, and of those that fit the fastest is taken: a larger budget never gives a
slower plan. Read after `jaxckpt.solve.stages` and `kernel_program`.

Sources: Kirisame et al., ICLR 2021 (`dtr`); Hu et al., MegTaiChi, ICS 2022 (`dte`); Zhang et al., Coop, NeurIPS 2023
(`coop`). That a record of evictions can be a compiled plan is upstream's own suggestion (pytorch#70173).
"""

from collections.abc import Iterator
from dataclasses import replace

from jaxckpt.dynamic.evictors import rule_as_run
from jaxckpt.dynamic.kernel_program import program_of_kernels
from jaxckpt.dynamic.memory import published_memory
from jaxckpt.dynamic.program import Program
from jaxckpt.dynamic.simulation import EventKind, Simulation
from jaxckpt.dynamic.simulator import RunOptions, simulate, unlimited_bytes
from jaxckpt.ir import GraphPlan, Phase
from jaxckpt.solve.problem import Problem, decide, solve_none
from jaxckpt.solve.stages import StageStarts, boundaries, candidate_cuts

_SHARES = (0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Budgets that are simulated, as shares of what the step takes without one."""
_CUTS = 3
"""Cuts that are tried with each record: those that made the smallest plans of the first one."""
_LIMIT = 10.0
"""A simulation is given up when it recomputes so many times the step's price."""


def sweep_evicted(problem: Problem, *, evictor: str) -> Iterator[GraphPlan]:
    """Plans that the evictions of "dtr" or a rule of `EVICTORS` make under many budgets.

    They are the same for every budget of the problem. The first recomputes nothing but what must be.
    """
    if problem.allows_empty_plan:
        yield solve_none(problem)
    else:
        yield decide(problem, problem.needed & problem.worth_saving, (0,), evictor)
    cuts: tuple[StageStarts, ...] = candidate_cuts(problem)
    seen: set[frozenset[int]] = set()
    for saved in _records(problem, evictor):
        if saved in seen:
            continue
        seen.add(saved)
        made = [plan for stages in cuts for plan in _with_cut(problem, saved, stages, evictor)]
        if len(seen) == 1:
            by_size = sorted(made, key=lambda plan: plan.predicted.temp_bytes)
            cuts = tuple(dict.fromkeys(plan.stages for plan in by_size))[:_CUTS]
        yield from made


def _with_cut(problem: Problem, saved: frozenset[int], stages: StageStarts, evictor: str) -> Iterator[GraphPlan]:
    saved |= problem.never_recomputed
    crossing = boundaries(problem, stages)
    yield decide(problem, saved | crossing, stages, evictor)
    if not crossing <= saved:
        yield decide(problem, saved, stages, evictor)


def _records(problem: Problem, evictor: str) -> Iterator[frozenset[int]]:
    """For each budget, from the least on, the values that stayed in memory for the backward pass."""
    program = program_of_kernels(problem)
    rule = replace(rule_as_run(evictor), least_bytes=1)
    memory = replace(published_memory(rule.name, hints=False), small_bytes=0)
    options, most_bytes = RunOptions(evictor=rule, memory=memory, limit=_LIMIT), unlimited_bytes(program)
    for share in _SHARES if most_bytes else ():
        found = simulate(program, budget=max(1, int(share * most_bytes)), record=True, options=options)
        if found.ok:
            yield _stayed(problem, program, found)


def _stayed(problem: Problem, program: Program, found: Simulation) -> frozenset[int]:
    """The values that the backward pass needs and that were not computed again in it."""
    ops = problem.graph.ops
    after_forward, run, recomputed = False, set[int](), set[int]()
    for event in found.events:
        if event.kind is not EventKind.RUN:
            continue
        op = ops[int(program.calls[event.id].name)]
        if event.id in run and after_forward and op.phase is Phase.FORWARD:
            recomputed.update(op.writes)
        run.add(event.id)
        after_forward |= op.phase is not Phase.FORWARD
    kept = problem.needed & problem.worth_saving & problem.fusion.materialised
    return frozenset(kept - recomputed)
