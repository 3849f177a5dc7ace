"""Loops are opened: the equations of a scan's body stand in the program, joined to what is around by equations of ours.

Opened are scans without effects that belong to a gradient: differentiated ones, and those with a gradient in the body.
What a later scan goes through and an earlier one stacked is one and the same value of a turn: the body of the later
scan reads it where the earlier one makes it. So a forward scan and its backward twin are not paired as such: their
values are. What a scan carries on unchanged, and what it stacks though it does not change, is read from where it is.

`close` puts open loops back into scan equations. What is in `jaxckpt.ir.loop` is said there.

Read after `program`; `inline` calls it.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.extend.core as jex

from jaxckpt import _compat
from jaxckpt.ir.branch import COND_END
from jaxckpt.ir.loop import CARRY, END, SLICE, STACK
from jaxckpt.ir.scope import JVP, TRANSPOSE
from jaxckpt.program.flat_program import Atom, CondBranch, Equation, FlatProgram, OpenLoop

PRIMITIVES = {name: jex.Primitive(name) for name in (CARRY, SLICE, END, STACK, COND_END)}
"""They are never bound and never lowered: a program with open loops is closed first."""

IS_PROBE = "shown"
"""A parameter of `loop_stack`: the stack is there to be looked at, and no other loop shall read it."""


def can_open_loop(eqn: Any, name_stack: Any) -> bool:
    """Whether a loop can be opened and it can help: a scan without effects that is part of a gradient."""
    if eqn.primitive.name != "scan" or _compat.lasting_effects(eqn.effects) or eqn.params["length"] < 1:
        return False
    marks = _compat.name_stack_marks(name_stack)
    return JVP in marks or TRANSPOSE in marks or has_transpose(eqn.params["jaxpr"])


def has_transpose(jaxpr: Any) -> bool:
    """Whether a backward pass stands in a body, or in a body in it."""
    return any(
        TRANSPOSE in _compat.name_stack_marks(eqn.source_info.name_stack)
        or any(map(has_transpose, jex.jaxprs_in_params(eqn.params)))
        for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns
    )


def loop_paths(loops: Sequence[OpenLoop]) -> list[tuple[int, ...]]:
    """For each loop the loops around it and itself, outermost first."""
    paths: list[tuple[int, ...]] = []
    for loop in loops:
        paths.append((*(() if loop.parent is None else paths[loop.parent]), len(paths)))
    return paths


class Visibility:
    """Tells from where the value of a loop's turn can be read.

    Args:
      loops: Of the program; it may grow.
      current: What stands for an atom that says which branch runs.
    """

    def __init__(self, loops: Sequence[OpenLoop], current: Callable[[Atom], Atom] = lambda atom: atom):
        self._loops = loops
        self._current = current

    def path(self, loop: int | None) -> tuple[int, ...]:
        """The loops around and itself, outermost first."""
        found: list[int] = []
        while loop is not None:
            found.append(loop)
            loop = self._loops[loop].parent
        return tuple(reversed(found))

    def can_read(self, reader: int | None, maker: int | None) -> bool:
        """Whether an equation of one loop can read what another makes: turn by turn, or from further out."""
        there, here = self.path(maker), self.path(reader)
        if there == here[: len(there)]:
            return True
        return len(there) <= len(here) and self.iteration_space(maker) == self.iteration_space(reader)[: len(there)]

    def same_iterations(self, loop: int, other: int) -> bool:
        """Whether two loops make the same turns: turn i of the one reads what turn i of the other has made."""
        return self.iteration_space(loop) == self.iteration_space(other)

    def iteration_space(self, loop: int | None) -> tuple[Hashable, ...]:
        """How many turns each loop around makes, outermost first; for a branch which of what index it is."""
        return tuple(map(self._shape_of, self.path(loop)))

    def _shape_of(self, loop: int) -> Hashable:
        opened = self._loops[loop]
        if opened.cond_branch is None:
            return opened.length
        return (
            self._current(opened.cond_branch.index),
            opened.cond_branch.branch.position,
            opened.cond_branch.branch.of,
        )


@dataclass(slots=True)
class _Made:
    """Where a variable comes from: its loop, and the array where it is a slice."""

    loop: int | None
    array: Atom | None = None


class LoopOpener:
    """Opens loops while a program is inlined."""

    def __init__(self) -> None:
        self.loops: list[OpenLoop] = []
        self.visibility = Visibility(self.loops)
        self._made: dict[Any, _Made] = {}
        self._stacked: dict[Any, tuple[int, Atom]] = {}

    def begin(
        self, eqn: Any, parent: int | None, *, manual: int | None = None, cond_branch: CondBranch | None = None
    ) -> int:
        """A new loop or branch; `eqn` is its scan or cond, with the whole name stack."""
        self.loops.append(OpenLoop(eqn=eqn, parent=parent, manual=manual, cond_branch=cond_branch))
        return len(self.loops) - 1

    def note(self, equation: Equation) -> None:
        """Remembers where an equation of a body stands."""
        if equation.loop is not None:
            self._made.update((v, _Made(equation.loop)) for v in equation.eqn.outvars)

    def carry(self, loop: int, index: int, init: Atom, aval: Any) -> Equation:
        """What a turn gets from the one before."""
        return self._ours(CARRY, loop, [init], [jex.Var(aval)], inside=True, index=index)

    def slice(self, loop: int, array: Atom, aval: Any) -> Equation | Atom:
        """The turn's slice of an array, or what an earlier loop made in the same turn."""
        source, value = self._stacked.get(array, (None, None)) if isinstance(array, jex.Var) else (None, None)
        if source is None or not self.visibility.same_iterations(loop, source) or source in self.visibility.path(loop):
            equation = self._ours(SLICE, loop, [array], [jex.Var(aval)], inside=True)
            self._made[equation.eqn.outvars[0]].array = array
            return equation
        made = self._made.get(value) if isinstance(value, jex.Var) else None
        if made is not None and made.array is not None and self._sees_array(loop, made.array):
            return self.slice(loop, made.array, aval)
        return value

    def _sees_array(self, loop: int, array: Atom) -> bool:
        return self.can_read_atom(self.loops[loop].parent, array)

    def can_read_atom(self, loop: int | None, atom: Atom) -> bool:
        """Whether an equation of a loop can read an atom."""
        made = self._made.get(atom) if isinstance(atom, jex.Var) else None
        return self.visibility.can_read(loop, None if made is None else made.loop)

    def end(self, loop: int, carried: Sequence[Atom], results: Sequence[Any]) -> Equation:
        """What the last turn handed on."""
        return self._ours(END, loop, carried, results, inside=False)

    def stack(self, loop: int, value: Atom, result: Any) -> Equation:
        """A value of every turn."""
        self._stacked[result] = (loop, value)
        return self._ours(STACK, loop, [value], [result], inside=False)

    def fork_end(self, loops: Sequence[int], index: Atom, values: Sequence[Atom], result: Any) -> Equation:
        """What the branch that ran has made."""
        return self._ours(COND_END, loops[0], [index, *values], [result], inside=False, **{BRANCHES: tuple(loops)})

    def _ours(
        self, name: str, loop: int, reads: Sequence[Atom], writes: Sequence[Any], *, inside: bool, **params: Any
    ) -> Equation:
        opened = self.loops[loop]
        params.update(loop=loop, length=opened.length, reverse=opened.reverse)
        eqn = opened.eqn.replace(
            primitive=PRIMITIVES[name], invars=list(reads), outvars=list(writes), params=params, effects=frozenset()
        )
        equation = Equation(eqn, loop=loop if inside else opened.parent, manual=opened.manual)
        self.note(equation)
        return equation


def is_loop_boundary(eqn: Any) -> bool:
    """Whether an equation joins an open loop to what is around."""
    return eqn.primitive.name in PRIMITIVES


STACK_WRITERS = "stretches"
"""A parameter of `loop_stack`: the loops that stack into it one after the other, where there are several."""


def stack_writers(eqn: Any) -> tuple[int, ...]:
    """For each operand of a `loop_stack` the loop that stacks it, in the order in which they run."""
    return tuple(eqn.params.get(STACK_WRITERS, (eqn.params["loop"],)))


BRANCHES = "branches"
"""A parameter of `cond_end`: the branches of its cond."""


def with_loop_ids(params: Mapping[str, Any], number: Callable[[int], int | None]) -> dict[str, Any]:
    """The parameters of an equation of ours where loops and branches have other numbers."""
    changed = dict(params, loop=number(params["loop"]))
    for name in (STACK_WRITERS, BRANCHES):
        if name in params:
            changed[name] = tuple(map(number, params[name]))
    return changed


def is_sound(program: FlatProgram) -> bool:
    """Whether every equation sees what it reads, and the equations of each body are neighbours.

    Moving equations and finding equal ones keeps it so for all programs that we know; one for which it does not is
    traced with whole loops.
    """
    visibility = Visibility(program.loops)
    made: dict[Any, int | None] = {}
    left: set[int] = set()
    around: tuple[int, ...] = ()
    for equation in program.equations:
        path = visibility.path(equation.loop)
        if not left.isdisjoint(path):
            return False
        left.update(set(around) - set(path))
        around = path
        if not all(
            visibility.can_read(reader, made[v])
            for v, reader in operands_and_loops(equation, program.loops)
            if v in made
        ):
            return False
        made.update(dict.fromkeys(equation.eqn.outvars, equation.loop))
    known = {*made, *program.invars, *(v for v, _ in program.constants)}
    return all(v in known for equation in program.equations for v in equation.variables())


def operands_and_loops(equation: Equation, loops: Sequence[OpenLoop]) -> Iterator[tuple[Any, int | None]]:
    """The variables that an equation reads, each with the loop whose turns read it."""
    eqn, reader = equation.eqn, equation.loop
    if eqn.primitive.name == COND_END:
        readers = (equation.loop, *eqn.params["branches"])
        yield from ((atom, loop) for atom, loop in zip(eqn.invars, readers, strict=True) if isinstance(atom, jex.Var))
        return
    if eqn.primitive.name == STACK:
        pairs = zip(eqn.invars, stack_writers(eqn), strict=True)
        yield from ((atom, loop) for atom, loop in pairs if isinstance(atom, jex.Var))
        return
    if is_loop_boundary(eqn):
        reader = eqn.params["loop"] if eqn.primitive.name == END else loops[eqn.params["loop"]].parent
    yield from ((variable, reader) for variable in equation.variables())
