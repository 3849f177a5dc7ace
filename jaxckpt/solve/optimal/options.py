"""Options of a stage: sets of values that it may save, from nothing to all residuals, each the cheapest of its size.

For one stage the choice is an integer programme. Each value worth saving has a variable S_v (saved), each op of the
stage a variable R_o (recomputed):

    minimise    sum_o seconds_o R_o  +  sum_v pin_v S_v
    subject to  S_v + R_p(v) >= 1          for each v that the backward reads, p(v) being its producer
                S_u + R_p(u) >= R_o        for each u of the stage that o reads
                sum_v bytes_v S_v <= limit
                S_v in {0, 1},  0 <= R_o <= 1

Seconds come from two replays of the subproblem, one that saves nothing and one that saves everything: seconds_o is the
time of o's clone if all clones run, pin_v the time that the producer of v takes more in the forward pass if v must be
materialised (the maximum of a softmax then costs one more pass over its rows). For a fixed S the least R is integral,
so only S is declared integer. `pareto_frontier` solves it for all limits at once; HiGHS solves it for one limit where a
stage has too many labels for that. Where the Pareto frontier of bytes and seconds has more points than a stage may have
options, or is not known, limits from all bytes down to none choose among them. Inputs from earlier stages, and boundary
values, are available and cost nothing here. Values inside kernels that hold rows are no candidates. Stages of the same
structure have the same options: one of them is solved.

Read after `stage_problem` and `pareto_frontier`. The programme is Checkmate's (Jain et al. 2020) for a single backward
visit to the stage.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import LinearConstraint

from jaxckpt.schedule import Run
from jaxckpt.schedule.validate import values_in_loops
from jaxckpt.solve.milp import Rows, minimise
from jaxckpt.solve.optimal.pareto_frontier import ParetoFrontier, StageCosts, pareto_frontier
from jaxckpt.solve.optimal.stage_problem import StagedProblem, StageProblem
from jaxckpt.solve.problem import Problem

_LIMIT_EXPONENT = 1.7
"""Exponent of the byte limits: above 1 they are denser for few bytes, where memory is short. With 1 and 2.5 plans are
as fast within 0.04% (`python -m benchmarks.constants`)."""
_BYTES_WEIGHT = 1e-9
"""Microseconds a byte, to break ties towards saving less: a GiB counts as much as one microsecond. 1e-10 gives the same
plans, 1e-8 plans that are 0.3% faster (`python -m benchmarks.constants`)."""
_LIMITS: Mapping[str, Any] = {"mip_rel_gap": 1e-3, "node_limit": 200}
"""Optimality gap and branch-and-bound nodes at which HiGHS stops: they bound planning time. A tenth and ten times the
gap, 50 and 1000 nodes give the same plans (`python -m benchmarks.constants`)."""

_MOST_LABELS = 2**16
"""Labels of a stage above which HiGHS solves the integer programme: up to there the frontier takes about as long at
most. Of the models of `benchmarks` only `experts` and `spos-switched` have a few stages with more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A set of values that a stage saves besides its boundary.

    Attributes:
      saved_bytes: Bytes that are live on the device until the stage's backward.
      recompute_s: Seconds of clones and pins, as the integer programme counts them.
      untouched: Residuals without a decision: all of the stage, or none.
      offloaded: Those of `saved`, and of the boundary, that are offloaded; see `moved_options`.
      offloaded_bytes: Bytes of these on the host.
      in_flight_bytes: Bytes of those outside of loops, which are on the device while the next stage is active, too.
      sharded: Those of `saved`, and of the boundary, that are sharded; see `moved_options`.
      gather_s: Seconds of slicing and gathering boundary values, which no replay of the subproblem counts.
    """

    saved: frozenset[int]
    saved_bytes: int
    recompute_s: float
    untouched: frozenset[int] = frozenset()
    offloaded: frozenset[int] = frozenset()
    offloaded_bytes: int = 0
    in_flight_bytes: int = 0
    sharded: frozenset[int] = frozenset()
    gather_s: float = 0.0


SolvedStages = dict[tuple[object, ...], tuple[StageProblem, tuple[Option, ...]]]
"""Solved stages with their options, by `StageProblem.key`."""


def stage_options(staged: StagedProblem, known: SolvedStages) -> tuple[tuple[Option, ...], ...]:
    """The options of every stage by rising bytes and falling seconds; last, if it has residuals, the untouched stage.

    Solved stages are added to `known`.
    """
    options = []
    for stage in staged.subproblems:
        if stage.key not in known:
            known[stage.key] = stage, _solved(stage, staged.problem.effort.options)
        like, own = known[stage.key]
        options.append(own if like is stage else tuple(_moved(option, like, stage) for option in own))
    return tuple(options)


def _solved(stage: StageProblem, most: int) -> tuple[Option, ...]:
    programme = StageProgramme(stage)
    return (*map(programme.option, programme.frontier(most)), *_untouched(stage, programme))


def _moved(option: Option, like: StageProblem, stage: StageProblem) -> Option:
    """The option of a stage, with the values of another stage of the same structure."""
    position, values = like.induced_subgraph.position, stage.induced_subgraph.values
    saved, untouched = (frozenset(values[position[v]] for v in some) for some in (option.saved, option.untouched))
    return replace(option, saved=saved, untouched=untouched)


def _untouched(stage: StageProblem, programme: "StageProgramme") -> Iterator[Option]:
    """The option without decisions, if the stage has residuals to decide about."""
    problem = stage.problem
    residuals = frozenset(programme.needed) - problem.required.keys()
    if residuals:
        stacked = programme.size_bytes.keys() & values_in_loops(problem.graph) & problem.needed
        kept = stage.compiler_residuals(residuals) | stacked & problem.fusion.materialised
        saved_bytes = sum(map(problem.graph.residual_bytes, kept))
        yield Option(saved=frozenset(), saved_bytes=saved_bytes, recompute_s=0.0, untouched=residuals)


class StageProgramme:
    """The integer programme of a stage, for any limit of bytes.

    Attributes:
      size_bytes: Values that may be saved, with their bytes.
      pin_s: For each of these values the seconds of materialising it.
      needed: Values that the backward reads and that are not available.
      producer: For each value that is not available the op that writes it.
      reads: For each op that may be recomputed the values of `producer` that it reads.
      clone_s: For each of these ops the seconds of its clone.
    """

    def __init__(self, stage: StageProblem):
        problem, graph = stage.problem, stage.problem.graph
        nothing, everything = _seconds(stage, frozenset()), _seconds(stage, problem.needed & problem.worth_saving)
        available = stage.saved | graph.results | problem.written_with_effects
        ops = _recomputable(problem, stage.ops, available)
        self.producer = {v: op for op in ops for v in graph.ops[op].writes if v not in available}
        position = {v: k for k, v in enumerate(self.producer)}
        worth_saving = problem.worth_saving - problem.fusion.rules.rows.values
        candidates = filter(worth_saving.__contains__, self.producer)
        self.size_bytes = {v: graph.residual_bytes(v) for v in candidates}
        self.pin_s = {v: _pin_s(nothing, everything, self.producer[v]) for v in self.size_bytes}
        self.needed = tuple(filter(problem.read_after_forward.__contains__, self.producer))
        read = {op: self.producer.keys() & graph.ops[op].reads for op in ops}
        self.reads = {op: tuple(sorted(values, key=position.__getitem__)) for op, values in read.items()}
        self.clone_s = {op: round(nothing.get((op, True), 0.0), 12) for op in ops}

    def option(self, saved: frozenset[int]) -> Option:
        """The option that saves some values."""
        clones_s = sum(self.clone_s[op] for op in sorted(self.recomputed(saved)))
        pins_s = sum(seconds for v, seconds in self.pin_s.items() if v in saved)
        return Option(saved=saved, saved_bytes=self._bytes_of(saved), recompute_s=clones_s + pins_s)

    def recomputed(self, saved: frozenset[int]) -> frozenset[int]:
        """The ops that are recomputed if some values are saved."""
        found: set[int] = set()
        pending = [v for v in self.needed if v not in saved]
        while pending:
            op = self.producer[pending.pop()]
            if op not in found:
                found.add(op)
                pending.extend(v for v in self.reads[op] if v not in saved)
        return frozenset(found)

    def _bytes_of(self, saved: frozenset[int]) -> int:
        return sum(map(self.size_bytes.__getitem__, saved))

    def frontier(self, most: int) -> tuple[frozenset[int], ...]:
        """Sets of saved values, by rising bytes: from none to the fastest choice without a limit."""
        if not self.size_bytes or not self.needed:
            return (frozenset(),)
        if self._pareto is not None and len(self._pareto) <= most:
            return self._pareto.sets
        saved = self.solve(sum(self.size_bytes.values()))
        found, full_bytes = [saved], self._bytes_of(saved)
        for step in reversed(range(1, most - 1)):
            if not saved:
                break
            limit_bytes = int(full_bytes * (step / (most - 1)) ** _LIMIT_EXPONENT)
            if limit_bytes < self._bytes_of(saved):
                saved = self.solve(limit_bytes)
                found.append(saved)
        if saved:
            found.append(frozenset())
        return tuple(reversed(found))

    def solve(self, limit_bytes: int) -> frozenset[int]:
        """The values that the cheapest solution within a limit saves."""
        if self._pareto is not None:
            return self._pareto.within(limit_bytes)
        cost, size_mib, closure = self._coefficients
        constraints = [closure, LinearConstraint(size_mib, ub=limit_bytes / 2**20 + 1e-9)]
        integrality = np.zeros(len(cost))
        integrality[: len(self.size_bytes)] = 1
        found = minimise(cost, constraints, integrality=integrality, **_LIMITS)
        columns = () if found is None else found[0]
        return frozenset(v for v, x in zip(self.size_bytes, columns, strict=False) if x > 0.5)

    @cached_property
    def _pareto(self) -> ParetoFrontier | None:
        """The solutions for all limits at once, with costs in femtoseconds; None where that would take longer."""
        costs = StageCosts(
            reads=self.reads,
            producer=self.producer,
            needed=self.needed,
            size_bytes=self.size_bytes,
            save_cost={v: round(1e9 * us) for v, us in self._save_us.items()},
            clone_cost={op: round(1e15 * seconds) for op, seconds in self.clone_s.items()},
        )
        return pareto_frontier(costs, most_labels=_MOST_LABELS)

    @property
    def _save_us(self) -> dict[int, float]:
        """Microseconds that each saved value counts."""
        return {v: size_bytes * _BYTES_WEIGHT + 1e6 * self.pin_s[v] for v, size_bytes in self.size_bytes.items()}

    @cached_property
    def _coefficients(self) -> tuple[NDArray[np.float64], NDArray[np.float64], LinearConstraint]:
        """The costs in microseconds, the bytes in MiB, and the rows that hold for every limit, built once."""
        column = {v: k for k, v in enumerate(self.size_bytes)}
        column_of_op = {op: k for k, op in enumerate(self.reads, len(column))}
        saved_or_recomputed = {
            v: {column_of_op[op]: 1.0, **({column[v]: 1.0} if v in column else {})} for v, op in self.producer.items()
        }
        rows = Rows()
        for value in self.needed:
            rows.add(saved_or_recomputed[value], lower=1.0)
        for op, reads in self.reads.items():
            for value in reads:
                rows.add({**saved_or_recomputed[value], column_of_op[op]: -1.0}, lower=0.0)
        size_bytes = np.array(list(self.size_bytes.values()), dtype=float)
        cost = np.concatenate([list(self._save_us.values()), np.array(list(self.clone_s.values())) * 1e6])
        size_mib = np.concatenate([size_bytes / 2**20, np.zeros(len(column_of_op))])
        return cost, size_mib, rows.constraint(len(cost))


_Seconds = dict[tuple[int, bool], float]
"""Seconds of each of a stage's forward ops (False), and of its clone (True)."""


def _pin_s(nothing: _Seconds, everything: _Seconds, op: int) -> float:
    """Seconds that an op takes more where its results are saved."""
    return round(max(0.0, everything[op, False] - nothing[op, False]), 12) if (op, False) in everything else 0.0


def _seconds(stage: StageProblem, saved: frozenset[int]) -> _Seconds:
    """Seconds of ops and clones if the stage saves some values."""
    replayed, subgraph = stage.replay(saved), stage.induced_subgraph
    return {
        (subgraph.ops[step.op - subgraph.first], step.is_clone): seconds
        for step, seconds in zip(replayed.steps, replayed.seconds, strict=True)
        if isinstance(step, Run) and step.op >= subgraph.first
    }


def _recomputable(problem: Problem, ops: tuple[int, ...], available: frozenset[int]) -> tuple[int, ...]:
    """The ops of a stage from which residuals that are not available are computed."""
    graph = problem.graph
    needed = {v for op in ops for v in graph.ops[op].writes if v in problem.read_after_forward and v not in available}
    found = []
    for op in reversed(ops):
        if any(v in needed for v in graph.ops[op].writes):
            found.append(op)
            needed.update(v for v in graph.ops[op].reads if v not in available)
    return tuple(reversed(found))
