"""A traced step with loops nested: each is a loop over groups, and in it one over the turns of a group.

Of a forward loop F the outer one keeps what a group begins with. The backward B goes through the same groups: the body
of its outer loop holds F once more, over the turns of the group and under new variables (a copy), and then B over these
turns, which reads what the copy makes. So the copy is a forward loop in the body of a loop that has its backward too,
as where gradients are accumulated: what its turns leave waits for one group, and is decided on as elsewhere.

What either of the two makes for nobody is left out. Inner loops go through whole arrays and stack into such
(`OpenLoop.is_inner_tile`): nothing is cut, joined or copied for it. Results are as they were, argument by argument and
bit by bit.

Read after `stretch`. Complexity: linear in equations, those of forward bodies once for each loop that reads them.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import jax.extend.core as jex

from jaxckpt import _compat
from jaxckpt.ir import GraphPlan, LoopTiling, Phase
from jaxckpt.ir.loop import ALL_ITERATIONS, BODY_INPUTS, CARRY, END, SLICE, STACK
from jaxckpt.ir.scope import RECOMPUTED
from jaxckpt.program.flat_program import Atom, Equation, OpenLoop
from jaxckpt.program.open_scan import Visibility, is_loop_boundary, stack_writers, with_loop_ids
from jaxckpt.program.simplify import eliminate_dead_code
from jaxckpt.rewrite.rebuild import rebuilt
from jaxckpt.rewrite.requested_loops import requested_loops
from jaxckpt.rewrite.split_loops import loops_split_together, with_split_loops
from jaxckpt.schedule.argument_derived import is_broadcast
from jaxckpt.trace.step import Traced

_LEAST = 2
"""A loop of fewer turns is none for a compiler, which would take the copy for the original."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TiledStep:
    """A step whose loops are nested.

    Attributes:
      traced: The step.
      values: For each value of the step as it was its ids: its own, if anybody reads it, and those of its copies.
    """

    traced: Traced
    values: tuple[tuple[int, ...], ...]


def with_planned_loops(traced: Traced, plan: GraphPlan) -> Traced:
    """The step whose values a plan decides on: its loops in stretches, and nested, as the plan says.

    Raises:
      PlanMismatchError: There are no such loops.
    """
    return with_tiled_loops(with_split_loops(traced, plan.loop_splits).traced, plan.loop_tilings).traced


def tileable_loops(traced: Traced) -> tuple[tuple[int, ...], ...]:
    """The loops of a step that can be nested, by those that have to be together; in order of their ids.

    They are those that can be split and stand in one body, where a copy sees what a forward loop reads from further
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
    """Nests loops of a traced step.

    Args:
      traced: The step; loops may be in stretches.
      loop_tilings: At most one for all loops that share values of turns, and none for a loop inside of another one's.

    Returns:
      The step with these loops nested, and what became of its values.

    Raises:
      PlanMismatchError: There is no such loop, it does not have that many turns, or it cannot be nested.
    """
    if not loop_tilings:
        return TiledStep(traced=traced, values=tuple((i,) for i in range(len(traced.graph.values))))

    def refused(asked: LoopTiling) -> tuple[str, str, str]:
        return (
            f"nested({traced.name}): the loop cannot be nested like that.",
            f"loop {asked.loop} as {asked.outer} groups of {asked.inner} turns",
            "groups of equal length, at least two of at least two turns, of a loop that can be nested, which no other"
            " nested one is around or inside of",
        )

    return _Nester(
        traced, requested_loops(traced, loop_tilings, tileable_loops(traced), fits=_fits, refused=refused)
    ).nest()


def _fits(asked: LoopTiling, length: int) -> bool:
    return asked.outer * asked.inner == length and min(asked.outer, asked.inner) >= _LEAST


@dataclass(frozen=True, slots=True, kw_only=True)
class _Renaming:
    """Which variables and loops stand for those of a body: in it itself, or in a copy.

    Attributes:
      names: Variables that have others here.
      loops: Ids of loops that have others here.
      spread: Variables from further out that a copy makes itself.
      marks: For a copy, the name stack that its equations stand under.
      around: The one that they stood under.
    """

    names: dict[Any, Any]
    loops: Mapping[int, int]
    spread: dict[Any, Any] = field(default_factory=dict)
    marks: Any = None
    around: Any = None

    def named(self, atom: Atom) -> Atom:
        """What an atom is here."""
        if not isinstance(atom, jex.Var):
            return atom
        return self.spread.get(atom) or self.names.get(atom, atom)

    def source(self, eqn: Any) -> Any:
        """The source of an equation as it stands here."""
        info = eqn.source_info
        if self.marks is None:
            return info
        common = _compat.common_names(self.around, info.name_stack)
        return info.replace(name_stack=self.marks + info.name_stack[common:])


class _Nester:
    def __init__(self, traced: Traced, loop_tilings: Mapping[int, LoopTiling]):
        self._traced = traced
        self._program = traced.program
        self._nests = loop_tilings
        self._visibility = Visibility(traced.program.loops)
        self._bodies: defaultdict[int, list[int]] = defaultdict(list)
        """For each loop that is nested the positions of the equations of its body."""
        self._ends: dict[int, int] = {}
        for position, equation in enumerate(self._program.equations):
            if (around := self._nested_around(equation.loop)) is not None:
                self._bodies[around].append(position)
            if equation.eqn.primitive.name == END and equation.eqn.params["loop"] in loop_tilings:
                self._ends[equation.eqn.params["loop"]] = position
        self._copied = {loop: tuple(self._read_of(loop)) for loop in loop_tilings}
        self._loops: list[OpenLoop] = []
        self._own: dict[int, int] = {}
        """For each loop its id; of one that is nested that of the inner one."""
        self._outer: dict[int, int] = {}
        self._here: dict[int, _Renaming] = {}
        self._copies: dict[tuple[int, int], _Renaming] = {}
        """For a loop, and a forward one that it reads, the copy of that one."""
        for loop in range(len(self._program.loops)):
            self._open(loop)
        self._handed: dict[int, Sequence[Any]] = {}
        self._made: list[tuple[Equation, Phase]] = []

    def _nested_around(self, loop: int | None) -> int | None:
        """The loop that is nested, itself or around."""
        return next((around for around in self._visibility.path(loop) if around in self._nests), None)

    def _read_of(self, loop: int) -> Iterator[int]:
        """The forward loops of whose turns one that has some of the backward reads values."""
        late = self._traced.graph.loops_after_forward
        if loop not in late:
            return
        equations = self._program.equations
        forward = {other for other in self._nests if other not in late and self._nests[other] == self._nests[loop]}
        made = {v: f for f in forward for at in self._bodies[f] for v in _leaving(equations[at].eqn)}
        reads = (v for at in (*self._bodies[loop], *self._after(loop)) for v in equations[at].variables())
        yield from sorted({made[v] for v in reads if v in made})

    def _after(self, loop: int) -> Iterator[int]:
        """Positions of what stands behind a loop and reads values of its turns."""
        for position, equation in enumerate(self._program.equations):
            if equation.eqn.primitive.name in (END, STACK) and loop in stack_writers(equation.eqn):
                yield position

    def _open(self, loop: int) -> None:
        """Numbers a loop anew: one that is nested twice, and before the second time those that are copied there."""
        opened = self._program.loops[loop]
        parent = None if opened.parent is None else self._own[opened.parent]
        if loop not in self._nests:
            self._own[loop] = self._add_loop(replace(opened, parent=parent))
            return
        nest = self._nests[loop]
        outer = self._outer[loop] = self._add_loop(_of_turns(replace(opened, parent=parent), nest.outer, unroll=1))
        names: dict[Any, Any] = {}
        for forward in self._copied[loop]:
            self._copies[loop, forward] = self._copy_loops(forward, opened, outer, names)
        self._own[loop] = self._add_loop(_inner(opened, outer, nest))
        self._here[loop] = _Renaming(names=names, loops=self._own)

    def _copy_loops(self, forward: int, backward: OpenLoop, outer: int, names: dict[Any, Any]) -> _Renaming:
        """The loop of a copy, and those inside of it."""
        loops: dict[int, int] = {}
        body = _Renaming(
            names=names,
            loops=loops,
            marks=backward.eqn.source_info.name_stack.extend(RECOMPUTED),
            around=self._program.loops[forward].eqn.source_info.name_stack,
        )
        for loop, opened in enumerate(self._program.loops):
            if forward in self._visibility.path(loop):
                made = _inner(opened, outer, self._nests[forward]) if loop == forward else opened
                eqn = made.eqn.replace(source_info=body.source(made.eqn))
                parent = outer if loop == forward else loops[opened.parent]  # type: ignore[index]
                loops[loop] = self._add_loop(replace(made, eqn=eqn, parent=parent, is_clone=loop == forward))
        return body

    def _add_loop(self, opened: OpenLoop) -> int:
        self._loops.append(opened)
        return len(self._loops) - 1

    def nest(self) -> TiledStep:
        positions = range(len(self._program.equations))
        for loop, group in groupby(positions, lambda at: self._nested_around(self._program.equations[at].loop)):
            if loop is None:
                for position in group:
                    self._outside(position)
            else:
                self._groups(loop)
        program = self._program.replace(equations=tuple(e for e, _ in self._made), loops=tuple(self._loops))
        alive = set(map(id, eliminate_dead_code(program).equations))
        made = ((equation, phase) for equation, phase in self._made if id(equation) in alive)
        copies: dict[Any, list[Any]] = {}
        for body in self._here.values():
            for variable, copy in body.names.items():
                copies.setdefault(variable, [variable]).append(copy)
        traced, values = rebuilt(self._traced, made, self._loops, copies)
        return TiledStep(traced=traced, values=values)

    def _groups(self, loop: int) -> None:
        """The body of an outer loop: what a group begins with, forward loops that are copied, the loop itself."""
        outer, here = self._outer[loop], self._here[loop]
        carried = dict(self._carried(loop, here))
        for forward in self._copied[loop]:
            copy = self._copies[loop, forward]
            self._spread(forward, copy)
            self._turns(forward, copy, self._begins(forward), fresh=True)
            if forward in self._ends:
                self._ended(forward, copy, outer)
        self._turns(loop, here, carried, fresh=False)
        if loop in self._ends:
            self._handed[loop] = self._ended(loop, here, outer)

    def _carried(self, loop: int, here: _Renaming) -> Iterator[tuple[int, Any]]:
        """What each group gets from the one before, by its place in the carry."""
        for position in self._bodies[loop]:
            equation = self._program.equations[position]
            if self._is_of(equation, CARRY, loop):
                group = jex.Var(equation.eqn.outvars[0].aval)
                yield equation.eqn.params["index"], group
                self._frame(
                    position, self._outer[loop], self._outer[loop], [here.named(equation.eqn.invars[0])], [group]
                )

    def _begins(self, forward: int) -> Mapping[int, Any]:
        """What each group of a forward loop gets from the one before."""
        begins: dict[int, Any] = {}
        for equation, _ in self._made:
            if self._is_of(equation, CARRY, self._outer[forward]):
                begins[equation.eqn.params["index"]] = equation.eqn.outvars[0]
        return begins

    def _is_of(self, equation: Equation, name: str, loop: int) -> bool:
        return equation.eqn.primitive.name == name and equation.eqn.params["loop"] == loop

    def _turns(self, loop: int, body: _Renaming, begins: Mapping[int, Any], *, fresh: bool) -> None:
        """The body of a loop, over the turns of a group."""
        for position in self._bodies[loop]:
            equation = self._program.equations[position]
            eqn = equation.eqn
            reads = [body.named(atom) for atom in eqn.invars]
            if self._is_of(equation, CARRY, loop):
                reads = [begins[eqn.params["index"]]]
            if fresh:
                body.names.update((v, jex.Var(v.aval)) for v in eqn.outvars)
            params = eqn.params
            if is_loop_boundary(eqn):
                params = with_loop_ids(params, body.loops.__getitem__)
            made = eqn.replace(
                invars=reads,
                outvars=[body.named(v) for v in eqn.outvars],
                params=params,
                source_info=body.source(eqn),
            )
            assert equation.loop is not None, "it stands in the body"
            self._add(position, replace(equation, eqn=made, loop=body.loops[equation.loop]))

    def _spread(self, forward: int, copy: _Renaming) -> None:
        """What a forward body reads from further out and is much larger than what it is made of, made in the copy.

        The backward does so too (`jaxckpt.schedule.schedule`), so that it need not be there until then.
        """
        graph, equations = self._traced.graph, self._program.equations
        ids = {variable: i for i, variable in enumerate(self._traced.variables)}
        body = [equations[position] for position in self._bodies[forward]]
        inside = {v for equation in body for v in equation.eqn.outvars}
        within = (e for e in body if not any(self._is_of(e, name, forward) for name in BODY_INPUTS))
        reads = {v for equation in within for v in equation.variables()}
        pending = [v for v in reads - inside if is_broadcast(graph, ids[v])]
        wanted: set[int] = set()
        while pending:
            made = graph.producer[ids[pending.pop()]]
            if made is not None and made not in wanted and not is_loop_boundary(equations[made].eqn):
                wanted.add(made)
                pending.extend(equations[made].variables())
        for position in sorted(wanted):
            eqn = equations[position].eqn
            reads_here = [copy.named(atom) for atom in eqn.invars]
            copy.spread.update((v, jex.Var(v.aval)) for v in eqn.outvars)
            writes = [copy.spread[v] for v in eqn.outvars]
            made_here = eqn.replace(invars=reads_here, outvars=writes, source_info=copy.source(eqn))
            self._add(position, replace(equations[position], eqn=made_here, loop=copy.loops[forward]))

    def _ended(self, loop: int, body: _Renaming, outer: int) -> Sequence[Any]:
        """What the last turn of a group hands on."""
        position = self._ends[loop]
        eqn = self._program.equations[position].eqn
        handed = [jex.Var(v.aval) for v in eqn.outvars]
        self._frame(position, body.loops[loop], outer, [body.named(atom) for atom in eqn.invars], handed, body)
        return handed

    def _frame(
        self,
        position: int,
        loop: int,
        around: int | None,
        reads: Sequence[Atom],
        writes: Sequence[Any],
        body: _Renaming | None = None,
    ) -> None:
        """An equation that joins the body of a loop to what is around, which stands in some body."""
        equation = self._program.equations[position]
        params = dict(equation.eqn.params, loop=loop, length=self._loops[loop].eqn.params["length"])
        eqn = equation.eqn.replace(invars=list(reads), outvars=list(writes), params=params)
        if body is not None:
            eqn = eqn.replace(source_info=body.source(eqn))
        self._add(position, replace(equation, eqn=eqn, loop=around))

    def _outside(self, position: int) -> None:
        """An equation outside of what is nested."""
        equation = self._program.equations[position]
        eqn, around = equation.eqn, None if equation.loop is None else self._own[equation.loop]
        if not is_loop_boundary(eqn):
            self._add(position, replace(equation, loop=around))
            return
        loop = eqn.params["loop"]
        if self._is_of(equation, END, loop) and loop in self._nests:
            self._frame(position, self._outer[loop], around, self._handed[loop], eqn.outvars)
            return
        reads, params = list(eqn.invars), with_loop_ids(eqn.params, self._own.__getitem__)
        if eqn.primitive.name == STACK:
            here = (self._here.get(stretch) for stretch in stack_writers(eqn))
            reads = [atom if body is None else body.named(atom) for body, atom in zip(here, reads, strict=True)]
        self._add(position, replace(equation, eqn=eqn.replace(invars=reads, params=params), loop=around))

    def _add(self, position: int, equation: Equation) -> None:
        self._made.append((equation, self._traced.graph.ops[position].phase))


def _leaving(eqn: Any) -> Sequence[Any]:
    """What an equation makes that a backward loop may have from a turn; that one cuts slices itself."""
    return () if eqn.primitive.name == SLICE else eqn.outvars


def _of_turns(opened: OpenLoop, length: int, *, unroll: int) -> OpenLoop:
    """The same loop of so many turns."""
    params = dict(opened.eqn.params, length=length, unroll=unroll)
    return replace(opened, eqn=opened.eqn.replace(params=params))


def _inner(opened: OpenLoop, outer: int, nest: LoopTiling) -> OpenLoop:
    """The loop over the turns of a group; it is a loop for the compiler too, however it is unrolled."""
    unroll = int(opened.eqn.params.get("unroll", 1))
    turns = _of_turns(opened, nest.inner, unroll=unroll if unroll < nest.inner else 1)
    return replace(turns, parent=outer, offset=None, is_inner_tile=True)
