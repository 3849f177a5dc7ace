"""Loop tiling: a traced step whose loops become a loop over tiles, and in it one over the iterations of a tile.

Strip-mining, with the recomputation of two-level checkpointing (Griewank and Walther's treeverse with one level of
snapshots). Of a forward loop F the loop over tiles keeps the carry that a tile begins with:

    for i in range(6): x = f(x)          ->    for j in range(3): keep(x); for i in range(2): x = f(x)
    for i in reversed(range(6)): b(x_i)  ->    for j in reversed(range(3)):
                                                   for i in range(2): x = f(x)         # a clone of F
                                                   for i in reversed(range(2)): b(x_i)

So the clone is a forward loop in the body of a loop that has its backward too, as where gradients are accumulated: its
residuals are alive for one tile, and decisions about them are made as elsewhere. Equations whose results nobody reads
are eliminated. Inner loops index arrays of all iterations and stack into such (`OpenLoop.is_inner_tile`): nothing is
cut, joined or copied for that. Results do not change by a bit.

Complexity: linear in equations, those of forward bodies once for each loop that reads them.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import jax.extend.core as jex

from jaxckpt import _compat
from jaxckpt.ir import GraphPlan, LoopTiling, Phase
from jaxckpt.ir.regions import ALL_ITERATIONS, BODY_INPUTS, CARRY, END, SLICE, STACK
from jaxckpt.ir.scope import RECOMPUTED
from jaxckpt.program.flat_program import Atom, Equation, OpenLoop
from jaxckpt.program.open_scan import Visibility, is_loop_boundary, stack_writers, with_loop_ids
from jaxckpt.program.simplify import eliminate_dead_code
from jaxckpt.rewrite.loop_transforms import requested_loops, with_equations
from jaxckpt.rewrite.split_loops import loops_split_together, with_split_loops
from jaxckpt.schedule.argument_derived import is_broadcast
from jaxckpt.trace.step import Traced

_FEWEST = 2
"""XLA unrolls a loop of one iteration, and would take the clone for the original (common subexpressions)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TiledStep:
    """A step whose loops are tiled, and for each value of the old one its ids: its own, if read, and its clones'."""

    traced: Traced
    values: tuple[tuple[int, ...], ...]


def with_planned_loops(traced: Traced, plan: GraphPlan) -> Traced:
    """The step whose values a plan decides on: its loops split and tiled as the plan says."""
    return with_tiled_loops(with_split_loops(traced, plan.loop_splits).traced, plan.loop_tilings).traced


def tileable_loops(traced: Traced) -> tuple[tuple[int, ...], ...]:
    """The loops of a step that can be tiled, by those that have to be tiled together; in order of their ids.

    They are those that can be split and are in one body, where a clone sees what a forward loop reads from further
    out; but for unrolled ones, and forward loops with ops that must not run twice.
    """
    graph = traced.graph
    once = {around for op in graph.ops if set(op.effects) - {ALL_ITERATIONS} for around in graph.path(op.loop)}
    return tuple(
        group
        for group in loops_split_together(traced)
        if not graph.loops_after_forward.isdisjoint(group)
        and once.isdisjoint(set(group) - graph.loops_after_forward)
        and len({graph.loops[loop].parent for loop in group}) == 1
        and all(graph.loops[loop].rolled for loop in group)
    )


def with_tiled_loops(traced: Traced, loop_tilings: Sequence[LoopTiling]) -> TiledStep:
    """Tiles loops of a step, which may be split; no two requests are for loops that share values or enclose others."""
    if not loop_tilings:
        return TiledStep(traced=traced, values=tuple((i,) for i in range(len(traced.graph.values))))

    def refusal(request: LoopTiling) -> tuple[str, str, str]:
        return (
            f"with_tiled_loops({traced.name}): the loop cannot be tiled like that.",
            f"loop {request.loop} in {request.outer} tiles of {request.inner} iterations",
            "tiles of equal length, at least two of at least two iterations, of a loop that can be tiled, and that no"
            " other tiled loop is around or inside of",
        )

    groups = tileable_loops(traced)
    return _Tiler(traced, requested_loops(traced, loop_tilings, groups, fits=_fits, refusal=refusal)).tile()


def _fits(request: LoopTiling, length: int) -> bool:
    return request.outer * request.inner == length and min(request.outer, request.inner) >= _FEWEST


@dataclass(frozen=True, slots=True, kw_only=True)
class _Renaming:
    """The variables and loops that stand for those of a body, in the tile itself or in a clone.

    `broadcasts` are variables from further out that a clone makes itself; `stack` is the name stack of its equations.
    """

    names: dict[jex.Var, jex.Var]
    loops: Mapping[int, int]
    broadcasts: dict[jex.Var, jex.Var] = field(default_factory=dict)
    stack: Any = None
    old_stack: Any = None

    def renamed(self, atom: Atom) -> Atom:
        """The atom that stands for another one here."""
        if not isinstance(atom, jex.Var):
            return atom
        return self.broadcasts.get(atom) or self.names.get(atom, atom)

    def source_info(self, eqn: jex.JaxprEqn) -> Any:
        """The source of an equation here."""
        info = eqn.source_info
        if self.stack is None:
            return info
        common = _compat.common_names(self.old_stack, info.name_stack)
        return info.replace(name_stack=self.stack + info.name_stack[common:])


class _Tiler:
    def __init__(self, traced: Traced, tilings: Mapping[int, LoopTiling]):
        self._traced = traced
        self._program = traced.program
        self._tilings = tilings
        self._visibility = Visibility(traced.program.loops)
        self._bodies: defaultdict[int, list[int]] = defaultdict(list)
        """For each loop that is tiled the positions of the equations of its body."""
        self._ends: dict[int, int] = {}
        for position, equation in enumerate(self._program.equations):
            if (around := self._tiled_around(equation.loop)) is not None:
                self._bodies[around].append(position)
            if equation.eqn.primitive.name == END and equation.eqn.params["loop"] in tilings:
                self._ends[equation.eqn.params["loop"]] = position
        self._loops: list[OpenLoop] = []
        self._ids: dict[int, int] = {}
        """For each loop its new id; of one that is tiled that of the inner loop."""
        self._outer: dict[int, int] = {}
        """For each loop that is tiled the id of the loop over tiles."""
        self._tiles: dict[int, _Renaming] = {}
        self._clones: dict[int, dict[int, _Renaming]] = {}
        """For each loop that is tiled the forward loops that it reads, with their clones."""
        for loop in range(len(self._program.loops)):
            self._open(loop)
        self._carried: dict[int, dict[int, jex.Var]] = {}
        """For each loop that is tiled the variables that each tile gets from the one before, by place in the carry."""
        self._written: list[tuple[Equation, Phase]] = []

    def _tiled_around(self, loop: int | None) -> int | None:
        """The loop that is tiled, itself or around."""
        return next((around for around in self._visibility.path(loop) if around in self._tilings), None)

    def _forward_loops_read_by(self, loop: int) -> Sequence[int]:
        """The forward loops of whose iterations a loop after the forward pass reads values."""
        after_forward = self._traced.graph.loops_after_forward
        if loop not in after_forward:
            return ()
        equations = self._program.equations
        forward = [f for f in self._tilings if f not in after_forward and self._tilings[f] == self._tilings[loop]]
        home = {v: f for f in forward for at in self._bodies[f] for v in _readable_results(equations[at].eqn)}
        read = (v for at in (*self._bodies[loop], *self._results(loop)) for v in equations[at].variables())
        return sorted({home[v] for v in read if v in home})

    def _results(self, loop: int) -> Iterator[int]:
        """Positions of the equations that give the last carry and the stacks of a loop."""
        for position, equation in enumerate(self._program.equations):
            if equation.eqn.primitive.name in (END, STACK) and loop in stack_writers(equation.eqn):
                yield position

    def _open(self, loop: int) -> None:
        """Gives a loop a new id: one that is tiled two, and between them those of its clones."""
        opened = self._program.loops[loop]
        parent = None if opened.parent is None else self._ids[opened.parent]
        if loop not in self._tilings:
            self._ids[loop] = self._add_loop(replace(opened, parent=parent))
            return
        tiling = self._tilings[loop]
        outer = self._outer[loop] = self._add_loop(_with_length(replace(opened, parent=parent), tiling.outer, unroll=1))
        names: dict[jex.Var, jex.Var] = {}
        self._clones[loop] = {
            forward: self._clone_loops(forward, opened, outer, names) for forward in self._forward_loops_read_by(loop)
        }
        self._ids[loop] = self._add_loop(_inner(opened, outer, tiling))
        self._tiles[loop] = _Renaming(names=names, loops=self._ids)

    def _clone_loops(self, forward: int, backward: OpenLoop, outer: int, names: dict[jex.Var, jex.Var]) -> _Renaming:
        """The loop of a clone, and those inside of it."""
        loops: dict[int, int] = {}
        clone = _Renaming(
            names=names,
            loops=loops,
            stack=backward.eqn.source_info.name_stack.extend(RECOMPUTED),
            old_stack=self._program.loops[forward].eqn.source_info.name_stack,
        )
        for loop, opened in enumerate(self._program.loops):
            if forward in self._visibility.path(loop):
                copy = _inner(opened, outer, self._tilings[forward]) if loop == forward else opened
                eqn = copy.eqn.replace(source_info=clone.source_info(copy.eqn))
                parent = outer if loop == forward else loops[opened.parent]  # type: ignore[index]
                loops[loop] = self._add_loop(replace(copy, eqn=eqn, parent=parent, is_clone=loop == forward))
        return clone

    def _add_loop(self, opened: OpenLoop) -> int:
        self._loops.append(opened)
        return len(self._loops) - 1

    def tile(self) -> TiledStep:
        handed: dict[int, Sequence[jex.Var]] = {}
        positions = range(len(self._program.equations))
        for loop, group in groupby(positions, lambda at: self._tiled_around(self._program.equations[at].loop)):
            if loop is not None:
                handed[loop] = self._write_tiles(loop)
                continue
            for position in group:
                self._write_outside(position, handed)
        program = self._program.replace(equations=tuple(e for e, _ in self._written), loops=tuple(self._loops))
        alive = set(map(id, eliminate_dead_code(program).equations))
        written = ((equation, phase) for equation, phase in self._written if id(equation) in alive)
        copies: dict[jex.Var, list[jex.Var]] = {}
        for tile in self._tiles.values():
            for variable, clone in tile.names.items():
                copies.setdefault(variable, [variable]).append(clone)
        traced, values = with_equations(self._traced, written, self._loops, copies)
        return TiledStep(traced=traced, values=values)

    def _write_tiles(self, loop: int) -> Sequence[jex.Var]:
        """The body of a loop over tiles: its carry, clones of forward loops, the loop itself; gives the last carry."""
        outer, tile = self._outer[loop], self._tiles[loop]
        self._carried[loop] = self._write_carry(loop, tile)
        for forward, clone in self._clones[loop].items():
            self._write_broadcasts(forward, clone)
            self._write_iterations(forward, clone, fresh=True)
            if forward in self._ends:
                self._write_end(forward, clone, outer)
        self._write_iterations(loop, tile, fresh=False)
        return self._write_end(loop, tile, outer) if loop in self._ends else ()

    def _write_carry(self, loop: int, tile: _Renaming) -> dict[int, jex.Var]:
        outer, carried = self._outer[loop], {}
        for position in self._bodies[loop]:
            equation = self._program.equations[position]
            if _is(equation, CARRY, loop):
                current = carried[equation.eqn.params["index"]] = jex.Var(equation.eqn.outvars[0].aval)
                self._write_boundary(position, outer, outer, [tile.renamed(equation.eqn.invars[0])], [current])
        return carried

    def _write_iterations(self, loop: int, renaming: _Renaming, *, fresh: bool) -> None:
        for position in self._bodies[loop]:
            equation = self._program.equations[position]
            eqn, params = equation.eqn, equation.eqn.params
            reads = [renaming.renamed(atom) for atom in eqn.invars]
            if _is(equation, CARRY, loop):
                reads = [self._carried[loop][params["index"]]]
            if fresh:
                renaming.names.update((v, jex.Var(v.aval)) for v in eqn.outvars)
            if is_loop_boundary(eqn):
                params = with_loop_ids(params, renaming.loops.__getitem__)
            writes = [renaming.renamed(v) for v in eqn.outvars]
            assert equation.loop is not None, "the equation is of a body"
            self._write(position, renaming.loops[equation.loop], reads, writes, params, renaming)

    def _write_broadcasts(self, forward: int, clone: _Renaming) -> None:
        """Broadcasts from further out that a forward body reads, made in the clone.

        The backward does so too (`jaxckpt.schedule.schedule`), so that the large array need not be kept until then.
        """
        for position in self._broadcasts(forward):
            eqn = self._program.equations[position].eqn
            reads = [clone.renamed(atom) for atom in eqn.invars]
            clone.broadcasts.update((v, jex.Var(v.aval)) for v in eqn.outvars)
            writes = [clone.broadcasts[v] for v in eqn.outvars]
            self._write(position, clone.loops[forward], reads, writes, eqn.params, clone)

    def _broadcasts(self, forward: int) -> Sequence[int]:
        """Positions of the equations that broadcasts from further out are made of."""
        graph, equations = self._traced.graph, self._program.equations
        ids = {variable: i for i, variable in enumerate(self._traced.variables)}
        pending = [v for v in self._read_from_outside(forward) if is_broadcast(graph, ids[v])]
        found: set[int] = set()
        while pending:
            producer = graph.producer[ids[pending.pop()]]
            if producer is not None and producer not in found and not is_loop_boundary(equations[producer].eqn):
                found.add(producer)
                pending.extend(equations[producer].variables())
        return sorted(found)

    def _read_from_outside(self, loop: int) -> Iterable[jex.Var]:
        """The variables of a body that it does not make itself; carries and slices get theirs in front of the loop."""
        body = [self._program.equations[position] for position in self._bodies[loop]]
        inner = (equation for equation in body if not any(_is(equation, name, loop) for name in BODY_INPUTS))
        read = {v for equation in inner for v in equation.variables()}
        return read - {v for equation in body for v in equation.eqn.outvars}

    def _write_end(self, loop: int, renaming: _Renaming, outer: int) -> Sequence[jex.Var]:
        position = self._ends[loop]
        eqn = self._program.equations[position].eqn
        handed = [jex.Var(v.aval) for v in eqn.outvars]
        reads = [renaming.renamed(atom) for atom in eqn.invars]
        self._write_boundary(position, renaming.loops[loop], outer, reads, handed, renaming)
        return handed

    def _write_boundary(
        self,
        position: int,
        loop: int,
        around: int | None,
        reads: Sequence[Atom],
        writes: Sequence[jex.Var],
        renaming: _Renaming | None = None,
    ) -> None:
        """An equation that joins the body of a loop to the body `around`."""
        own = {"loop": loop, "length": self._loops[loop].eqn.params["length"]}
        params = {**self._program.equations[position].eqn.params, **own}
        self._write(position, around, reads, writes, params, renaming)

    def _write_outside(self, position: int, handed: Mapping[int, Sequence[jex.Var]]) -> None:
        """An equation outside of all loops that are tiled; `handed` has the last carries of these."""
        equation = self._program.equations[position]
        eqn, around = equation.eqn, None if equation.loop is None else self._ids[equation.loop]
        if not is_loop_boundary(eqn):
            self._write(position, around, eqn.invars, eqn.outvars, eqn.params)
            return
        loop = eqn.params["loop"]
        if _is(equation, END, loop) and loop in self._tilings:
            self._write_boundary(position, self._outer[loop], around, handed[loop], eqn.outvars)
            return
        reads, params = list(eqn.invars), with_loop_ids(eqn.params, self._ids.__getitem__)
        if eqn.primitive.name == STACK:
            tiles = (self._tiles.get(writer) for writer in stack_writers(eqn))
            reads = [atom if tile is None else tile.renamed(atom) for tile, atom in zip(tiles, reads, strict=True)]
        self._write(position, around, reads, eqn.outvars, params)

    def _write(
        self,
        position: int,
        loop: int | None,
        reads: Sequence[Atom],
        writes: Sequence[jex.Var],
        params: dict[str, Any],
        renaming: _Renaming | None = None,
    ) -> None:
        equation = self._program.equations[position]
        info = equation.eqn.source_info if renaming is None else renaming.source_info(equation.eqn)
        eqn = equation.eqn.replace(invars=list(reads), outvars=list(writes), params=params, source_info=info)
        self._written.append((replace(equation, eqn=eqn, loop=loop), self._traced.graph.ops[position].phase))


def _is(equation: Equation, name: str, loop: int) -> bool:
    """True if an equation is a loop's equation of some primitive of ours."""
    return equation.eqn.primitive.name == name and equation.eqn.params["loop"] == loop


def _readable_results(eqn: jex.JaxprEqn) -> Sequence[jex.Var]:
    """The results that a backward loop may read from an iteration; slices it takes itself."""
    return () if eqn.primitive.name == SLICE else eqn.outvars


def _with_length(opened: OpenLoop, length: int, *, unroll: int) -> OpenLoop:
    params = dict(opened.eqn.params, length=length, unroll=unroll)
    return replace(opened, eqn=opened.eqn.replace(params=params))


def _inner(opened: OpenLoop, outer: int, tiling: LoopTiling) -> OpenLoop:
    """The loop over the iterations of a tile; it is a loop for the compiler too, however it is unrolled."""
    unroll = int(opened.eqn.params.get("unroll", 1))
    inner = _with_length(opened, tiling.inner, unroll=unroll if unroll < tiling.inner else 1)
    return replace(inner, parent=outer, offset=None, is_inner_tile=True)
