"""Shared by loop splitting and loop tiling: the loops that a plan asks for, and a step whose loops are written anew.

Both write the body of a loop several times, each time under other variables and in other loops (`BodyCopy`).
Complexity: linear in equations, times the copies of their body, and in loops times requests.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TypeVar

import jax.extend.core as jex
from jax.extend.source_info_util import NameStack, SourceInfo

from jaxckpt import _compat
from jaxckpt._errors import PlanMismatchError
from jaxckpt.ir import Graph, LoopSplit, LoopTiling, Phase
from jaxckpt.ir.regions import CARRY, END, STACK
from jaxckpt.outline.outline import closed_jaxpr
from jaxckpt.program.flat_program import Atom, Equation, OpenLoop, Params, renamed
from jaxckpt.program.open_loops import STACK_WRITERS, Visibility, is_loop_boundary, stack_writers, with_loop_ids
from jaxckpt.trace.graph import graph_of
from jaxckpt.trace.step import Traced

Request = TypeVar("Request", LoopTiling, LoopSplit)

_FEWEST = 2
"""XLA unrolls a loop of one iteration, and would take the clone for the original (common subexpressions)."""


def requested_loops(
    traced: Traced, requests: Sequence[Request], groups: Sequence[tuple[int, ...]]
) -> dict[int, Request]:
    """Finds the loops that a plan names, and those that change with them: for each its request that fits its length.

    No two requests are for one group, or for a loop inside of another one's.
    """
    graph = traced.graph
    found: dict[int, Request] = {}
    for request in requests:
        group = next((group for group in groups if request.loop in group), ())
        if not group or _overlaps(graph, group, found) or not _fits(request, graph.loops[request.loop].length):
            raise _refusal(traced, request, groups)
        found.update(dict.fromkeys(group, request))
    return found


def _fits(request: LoopSplit | LoopTiling, length: int) -> bool:
    if isinstance(request, LoopSplit):
        return sum(request.lengths) == length and min(request.lengths) >= 1
    return request.outer * request.inner == length and min(request.outer, request.inner) >= _FEWEST


def _refusal(traced: Traced, request: LoopSplit | LoopTiling, groups: Sequence[tuple[int, ...]]) -> PlanMismatchError:
    if isinstance(request, LoopSplit):
        problem = f"with_split_loops({traced.name}): the loop cannot be split like that."
        got = f"loop {request.loop} in parts of {' + '.join(map(str, request.lengths))} iterations"
        needed = "parts that make all iterations of a loop that can be split, each once"
    else:
        problem = f"with_tiled_loops({traced.name}): the loop cannot be tiled like that."
        got = f"loop {request.loop} in {request.outer} tiles of {request.inner} iterations"
        needed = (
            "tiles of equal length, at least two of at least two iterations, of a loop that can be tiled, and that no"
            " other tiled loop is around or inside of"
        )
    lengths = ((group[0], traced.graph.loops[group[0]].length) for group in groups)
    fitting = ", ".join(f"loop {loop} of {length} iterations" for loop, length in lengths)
    return PlanMismatchError(
        problem,
        got=got,
        needed=f"{needed} ({fitting or 'there is none'})",
        advice="plan again for this step, these shapes and this version of jax",
        planned=str(request),
        found=fitting,
    )


def _overlaps(graph: Graph, group: Sequence[int], loops: Iterable[int]) -> bool:
    """True if some of a group's loops are around or inside of others, or the same."""
    around = {each for loop in group for each in graph.path(loop)}
    return any(loop in around or not set(group).isdisjoint(graph.path(loop)) for loop in loops)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BodyCopy:
    """The variables and loops that stand for those of a body.

    Attributes:
      names: Results of the body that has been written so far; those of other bodies that it reads too.
      loops: The loop that stands for each loop in the body, and for the loop itself.
      renames: True if the results get new variables.
      broadcasts: Variables from further out that the copy makes itself.
      stack: Name stack of the copy in the place of `old_stack`; None where names stay.
    """

    names: dict[jex.Var, jex.Var]
    loops: Mapping[int, int]
    renames: bool = True
    broadcasts: dict[jex.Var, jex.Var] = field(default_factory=dict)
    stack: NameStack | None = None
    old_stack: NameStack | None = None

    def renamed(self, atom: Atom) -> Atom:
        """The atom that stands for another one here."""
        own = renamed(atom, self.broadcasts)
        return renamed(atom, self.names) if own is atom else own

    def source_info(self, eqn: jex.JaxprEqn) -> SourceInfo:
        """The source of an equation here."""
        info = eqn.source_info
        if self.stack is None:
            return info
        common = _compat.common_names(self.old_stack, info.name_stack)
        return info.replace(name_stack=self.stack + info.name_stack[common:])


class LoopRewriter:
    """A step whose `chosen` loops are written anew; a subclass says how.

    Attributes:
      bodies: For each chosen loop the positions of the equations of its body.
      ends: For each chosen loop with a carry the position of the equation of its last carry.
      stacked: For each chosen loop the copies whose values are stacked for the step, in the order in which they run.
      last_carries: For each of them with a carry what its last carry is read from, and which loop gives that.
      loops: The loops of the new step.
      ids: The new id of each loop that has one.
      written: The equations of the new step, with their phases.
    """

    def __init__(self, traced: Traced, chosen: Iterable[int]):
        self.traced = traced
        self.program = traced.program
        self.chosen = frozenset(chosen)
        self.visibility = Visibility(traced.program.loops)
        self.bodies: defaultdict[int, list[int]] = defaultdict(list)
        self.ends: dict[int, int] = {}
        for position, equation in enumerate(self.program.equations):
            if (around := self.chosen_around(equation.loop)) is not None:
                self.bodies[around].append(position)
            if equation.eqn.primitive.name == END and equation.eqn.params["loop"] in self.chosen:
                self.ends[equation.eqn.params["loop"]] = position
        self.stacked: dict[int, Sequence[BodyCopy]] = {}
        self.last_carries: dict[int, tuple[Sequence[Atom], Params]] = {}
        self.loops: list[OpenLoop] = []
        self.ids: dict[int, int] = {}
        self.written: list[tuple[Equation, Phase]] = []

    def chosen_around(self, loop: int | None) -> int | None:
        """The chosen loop that is a loop itself or around it."""
        return next((around for around in self.visibility.path(loop) if around in self.chosen), None)

    def add_loop(self, opened: OpenLoop, parent: int | None) -> int:
        """Adds a loop of the new step; returns its id."""
        self.loops.append(replace(opened, parent=parent))
        return len(self.loops) - 1

    def new_id(self, loop: int | None) -> int | None:
        """The new id of a loop outside of all chosen ones; None outside of all loops."""
        return None if loop is None else self.ids[loop]

    def rewrite(self) -> None:
        """Writes all equations, in order."""
        positions = range(len(self.program.equations))
        for loop, group in groupby(positions, lambda at: self.chosen_around(self.program.equations[at].loop)):
            if loop is not None:
                self.write_copies(loop)
                continue
            for position in group:
                self.write_outside(position)

    def write_copies(self, loop: int) -> None:
        """Writes the copies of a chosen loop's body, each with the carry of the one before; notes the last carry."""
        raise NotImplementedError

    def write_outside(self, position: int) -> None:
        """Writes an equation outside of all chosen loops."""
        equation = self.program.equations[position]
        eqn, around = equation.eqn, self.new_id(equation.loop)
        if not is_loop_boundary(eqn):
            self.write(position, around, eqn.invars, eqn.outvars, eqn.params)
        elif eqn.primitive.name == END and eqn.params["loop"] in self.chosen:
            reads, params = self.last_carries[eqn.params["loop"]]
            self.write(position, around, reads, eqn.outvars, {**eqn.params, **params})
        elif eqn.primitive.name == STACK:
            self._write_stack(position, around)
        else:
            self.write(position, around, eqn.invars, eqn.outvars, with_loop_ids(eqn.params, self.ids.__getitem__))

    def _write_stack(self, position: int, around: int | None) -> None:
        eqn = self.program.equations[position].eqn
        reads: list[Atom] = []
        loops: list[int] = []
        for loop, value in zip(stack_writers(eqn), eqn.invars, strict=True):
            copies = self.stacked.get(loop, ())
            reads += [copy.renamed(value) for copy in copies] or [value]
            loops += [copy.loops[loop] for copy in copies] or [self.ids[loop]]
        params = {**eqn.params, "loop": loops[-1]}
        if len(loops) > 1:
            params[STACK_WRITERS] = tuple(loops)
        self.write(position, around, reads, eqn.outvars, params)

    def write_body(self, loop: int, copy: BodyCopy, carried: Mapping[int, jex.Var]) -> None:
        """Writes a copy of a loop's body, which gets the values `carried`, by place, in the place of its own carry."""
        for position in self.bodies[loop]:
            equation = self.program.equations[position]
            eqn, params = equation.eqn, equation.eqn.params
            reads = [copy.renamed(atom) for atom in eqn.invars]
            if carried and is_of_loop(equation, CARRY, loop):
                reads = [carried[params["index"]]]
            if copy.renames:
                copy.names.update((v, jex.Var(v.aval)) for v in eqn.outvars)
            if is_loop_boundary(eqn):
                params = with_loop_ids(params, copy.loops.__getitem__)
            assert equation.loop is not None, "the equation is of a body"
            self.write(position, copy.loops[equation.loop], reads, map(copy.renamed, eqn.outvars), params, copy)

    def write_end(self, loop: int, copy: BodyCopy, around: int | None, params: Params) -> Sequence[jex.Var]:
        """Writes the equation of the last carry of a copy, if there is one; returns its variables, which are new."""
        if loop not in self.ends:
            return ()
        eqn = self.program.equations[self.ends[loop]].eqn
        writes = [jex.Var(v.aval) for v in eqn.outvars]
        self.write(self.ends[loop], around, map(copy.renamed, eqn.invars), writes, {**eqn.params, **params}, copy)
        return writes

    def write(
        self,
        position: int,
        loop: int | None,
        reads: Iterable[Atom],
        writes: Iterable[jex.Var],
        params: Params,
        copy: BodyCopy | None = None,
    ) -> None:
        """Writes a copy of an equation into the body of a loop."""
        equation = self.program.equations[position]
        info = equation.eqn.source_info if copy is None else copy.source_info(equation.eqn)
        eqn = equation.eqn.replace(invars=list(reads), outvars=list(writes), params=params, source_info=info)
        self.written.append((replace(equation, eqn=eqn, loop=loop), self.traced.graph.ops[position].phase))


def is_of_loop(equation: Equation, name: str, loop: int) -> bool:
    """True if an equation is a loop's equation of some primitive of ours."""
    return equation.eqn.primitive.name == name and equation.eqn.params["loop"] == loop


def with_equations(
    traced: Traced,
    equations: Iterable[tuple[Equation, Phase]],
    loops: Iterable[OpenLoop],
    copies: Mapping[jex.Var, Sequence[jex.Var]],
) -> tuple[Traced, tuple[tuple[int, ...], ...]]:
    """A traced step with other equations that compute the same from the same arguments, its graph and jaxpr made anew.

    `copies` has for variables of the step those that stand for them, sharded alike; the others stand for themselves.
    Also returns for each value of the old step the ids of what stands for it, as far as it exists.
    """
    pairs = tuple(equations)
    program = traced.program.replace(equations=tuple(e for e, _ in pairs), loops=tuple(loops))
    variables = [copies.get(variable, (variable,)) for variable in traced.variables]
    graph, named = graph_of(
        program,
        [phase for _, phase in pairs],
        shardings=[spec.sharding for spec in traced.specs],
        donated=traced.donated,
        splits=_splits(traced, variables),
    )
    ids = {variable: i for i, variable in enumerate(named)}
    jaxpr = closed_jaxpr(program, program.equations, program.outvars)
    changed = replace(traced, graph=graph, program=program, jaxpr=jaxpr, variables=named)
    return changed, tuple(tuple(ids[copy] for copy in each if copy in ids) for each in variables)


def _splits(traced: Traced, variables: Sequence[Sequence[jex.Var]]) -> dict[jex.Var, tuple[tuple[str, ...], ...]]:
    """How the variables that stand for sharded values are sharded: as these values."""
    pairs = zip(traced.graph.values, variables, strict=True)
    return {copy: value.split for value, each in pairs if value.split for copy in each}
