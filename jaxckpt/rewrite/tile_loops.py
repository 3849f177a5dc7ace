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

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import jax.extend.core as jex

from jaxckpt.ir import LoopTiling
from jaxckpt.ir.regions import ALL_ITERATIONS, BODY_INPUTS, CARRY, END, SLICE, STACK
from jaxckpt.ir.scope import RECOMPUTED
from jaxckpt.program.flat_program import OpenLoop, Params
from jaxckpt.program.open_loops import is_loop_boundary, stack_writers
from jaxckpt.program.simplify import eliminate_dead_code
from jaxckpt.rewrite.loop_transforms import BodyCopy, LoopRewriter, is_of_loop, requested_loops, with_equations
from jaxckpt.rewrite.split_loops import loops_split_together
from jaxckpt.schedule.argument_derived import is_broadcast
from jaxckpt.trace.step import Traced


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TiledStep:
    """A step whose loops are tiled, and for each value of the old one its ids: its own, if read, and its clones'."""

    traced: Traced
    values: tuple[tuple[int, ...], ...]


def tileable_loops(traced: Traced) -> tuple[tuple[int, ...], ...]:
    """The loops of a step that can be tiled, by those that have to be tiled together; in order of their ids.

    They are those that can be split and are in one body, where a clone sees what a forward loop reads from further
    out; but for unrolled ones, and forward loops with ops that must not run twice.
    """
    # One condition a line.
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
    return _Tiler(traced, requested_loops(traced, loop_tilings, tileable_loops(traced))).tile()


class _Tiler(LoopRewriter):
    def __init__(self, traced: Traced, tilings: Mapping[int, LoopTiling]):
        super().__init__(traced, tilings)
        self._tilings = tilings
        self._outer: dict[int, int] = {}
        """For each loop that is tiled the id of the loop over tiles; `ids` has that of the inner loop."""
        self._clones: dict[int, dict[int, BodyCopy]] = {}
        """For each loop that is tiled the forward loops that it reads, with their clones."""
        for loop in range(len(self.program.loops)):
            self._open(loop)
        self._carried: dict[int, dict[int, jex.Var]] = {}
        """For each loop that is tiled the variables that each tile gets from the one before, by place in the carry."""

    def _forward_loops_read_by(self, loop: int) -> Sequence[int]:
        """The forward loops of whose iterations a loop after the forward pass reads values."""
        after_forward = self.traced.graph.loops_after_forward
        if loop not in after_forward:
            return ()
        # Two lookups and a search, each a comprehension.
        equations = self.program.equations
        forward = [f for f in self._tilings if f not in after_forward and self._tilings[f] == self._tilings[loop]]
        home = {v: f for f in forward for at in self.bodies[f] for v in _readable_results(equations[at].eqn)}
        read = (v for at in (*self.bodies[loop], *self._results(loop)) for v in equations[at].variables())
        return sorted({home[v] for v in read if v in home})

    def _results(self, loop: int) -> Iterator[int]:
        """Positions of the equations that give the last carry and the stacks of a loop."""
        for position, equation in enumerate(self.program.equations):
            if equation.eqn.primitive.name in (END, STACK) and loop in stack_writers(equation.eqn):
                yield position

    def _open(self, loop: int) -> None:
        """Gives a loop a new id: one that is tiled two, and between them those of its clones."""
        opened = self.program.loops[loop]
        parent = self.new_id(opened.parent)
        if loop not in self._tilings:
            self.ids[loop] = self.add_loop(opened, parent)
            return
        tiling = self._tilings[loop]
        outer = self._outer[loop] = self.add_loop(_with_length(opened, tiling.outer, unroll=1), parent)
        tile = BodyCopy(names={}, loops=self.ids, renames=False)
        self._clones[loop] = {f: self._clone(f, opened, outer, tile.names) for f in self._forward_loops_read_by(loop)}
        self.ids[loop] = self.add_loop(_inner(opened, tiling), outer)
        self.stacked[loop] = (tile,)

    def _clone(self, forward: int, backward: OpenLoop, outer: int, names: dict[jex.Var, jex.Var]) -> BodyCopy:
        """A clone of a loop, and of those inside of it."""
        clone = BodyCopy(
            names=names,
            loops={},
            stack=backward.eqn.source_info.name_stack.extend(RECOMPUTED),
            old_stack=self.program.loops[forward].eqn.source_info.name_stack,
        )
        for loop, opened in enumerate(self.program.loops):
            if forward in self.visibility.path(loop):
                is_cloned = loop == forward
                copy = _inner(opened, self._tilings[forward]) if is_cloned else opened
                eqn = copy.eqn.replace(source_info=clone.source_info(copy.eqn))
                parent = outer if is_cloned else clone.loops[opened.parent]
                clone.loops[loop] = self.add_loop(replace(copy, eqn=eqn, is_clone=is_cloned), parent)
        return clone

    def tile(self) -> TiledStep:
        self.rewrite()
        program = self.program.replace(equations=tuple(e for e, _ in self.written), loops=tuple(self.loops))
        alive = set(map(id, eliminate_dead_code(program).equations))
        written = ((equation, phase) for equation, phase in self.written if id(equation) in alive)
        copies: dict[jex.Var, list[jex.Var]] = {}
        for (tile,) in self.stacked.values():
            for variable, clone in tile.names.items():
                copies.setdefault(variable, [variable]).append(clone)
        traced, values = with_equations(self.traced, written, self.loops, copies)
        return TiledStep(traced=traced, values=values)

    def write_copies(self, loop: int) -> None:
        """Writes the body of a loop over tiles: its carry, clones of forward loops, the loop itself."""
        outer, (tile,) = self._outer[loop], self.stacked[loop]
        carried = self._carried[loop] = {}
        for position in self.bodies[loop]:
            equation = self.program.equations[position]
            if is_of_loop(equation, CARRY, loop):
                eqn = equation.eqn
                current = carried[eqn.params["index"]] = jex.Var(eqn.outvars[0].aval)
                params = {**eqn.params, **self._place(outer)}
                self.write(position, outer, [tile.renamed(eqn.invars[0])], [current], params)
        for forward, clone in self._clones[loop].items():
            self._write_broadcasts(forward, clone)
            self.write_body(forward, clone, self._carried[forward])
            self.write_end(forward, clone, outer, self._place(clone.loops[forward]))
        self.write_body(loop, tile, carried)
        handed = self.write_end(loop, tile, outer, self._place(self.ids[loop]))
        self.last_carries[loop] = handed, self._place(outer)

    def _place(self, loop: int) -> Params:
        """The parameters that name a loop of the new step."""
        return {"loop": loop, "length": self.loops[loop].length}

    def _write_broadcasts(self, forward: int, clone: BodyCopy) -> None:
        """Broadcasts from further out that a forward body reads, made in the clone.

        The backward does so too (`jaxckpt.schedule.schedule`), so that the large array need not be kept until then.
        """
        for position in self._broadcasts(forward):
            eqn = self.program.equations[position].eqn
            reads = [clone.renamed(atom) for atom in eqn.invars]
            clone.broadcasts.update((v, jex.Var(v.aval)) for v in eqn.outvars)
            writes = [clone.broadcasts[v] for v in eqn.outvars]
            self.write(position, clone.loops[forward], reads, writes, eqn.params, clone)

    def _broadcasts(self, forward: int) -> Sequence[int]:
        """Positions of the equations that broadcasts from further out are made of."""
        graph, equations = self.traced.graph, self.program.equations
        ids = {variable: i for i, variable in enumerate(self.traced.variables)}
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
        body = [self.program.equations[position] for position in self.bodies[loop]]
        inner = (equation for equation in body if not any(is_of_loop(equation, name, loop) for name in BODY_INPUTS))
        read = {v for equation in inner for v in equation.variables()}
        return read - {v for equation in body for v in equation.eqn.outvars}


def _readable_results(eqn: jex.JaxprEqn) -> Sequence[jex.Var]:
    """The results that a backward loop may read from an iteration; slices it takes itself."""
    return () if eqn.primitive.name == SLICE else eqn.outvars


def _with_length(opened: OpenLoop, length: int, *, unroll: int) -> OpenLoop:
    params = dict(opened.eqn.params, length=length, unroll=unroll)
    return replace(opened, eqn=opened.eqn.replace(params=params))


def _inner(opened: OpenLoop, tiling: LoopTiling) -> OpenLoop:
    """The loop over the iterations of a tile; it is a loop for the compiler too, however it is unrolled."""
    unroll = int(opened.eqn.params.get("unroll", 1))
    inner = _with_length(opened, tiling.inner, unroll=unroll if unroll < tiling.inner else 1)
    return replace(inner, offset=None, is_inner_tile=True)
