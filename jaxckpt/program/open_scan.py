"""Opens loops: the equations of a scan's body join the program, between equations that carry, slice and stack.

1. Opened are scans without effects that belong to a gradient: differentiated ones, and those with a gradient inside.
2. What a later scan slices and an earlier one stacked is one value of an iteration: the later body reads it where the
   earlier body computes it. So a forward scan and its backward scan need not be paired: their values are.
3. What a scan carries on unchanged, and what it stacks unchanged, is read from its source.

`outline` puts open loops back into scan equations. The added primitives are explained in `jaxckpt.ir.regions`.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import jax.core
import jax.extend.core as jex
from jax.extend.source_info_util import NameStack

from jaxckpt import _compat
from jaxckpt.ir.regions import BODY_INPUTS, COND_END, END, LOOP_BOUNDARIES, SLICE, STACK
from jaxckpt.ir.scope import JVP, TRANSPOSE
from jaxckpt.program.flat_program import (
    AnyJaxpr,
    Atom,
    CondBranch,
    Equation,
    FlatProgram,
    OpenLoop,
    boundary_eqn,
    open_jaxpr,
)

IS_PROBE = "shown"
"""A parameter of `loop_stack`: the stack exists to be looked at, and no other loop reads from it."""
STACK_WRITERS = "stretches"
"""A parameter of `loop_stack`: the loops that stack into it one after the other, if there are several."""
BRANCHES = "branches"
"""A parameter of `cond_end`: the branches of its cond."""


def can_open_loop(eqn: jex.JaxprEqn, name_stack: NameStack) -> bool:
    """True if an equation is a scan without effects that is part of a gradient."""
    if eqn.primitive.name != "scan" or _compat.lasting_effects(eqn.effects) or eqn.params["length"] < 1:
        return False
    return belongs_to_gradient(name_stack, [eqn.params["jaxpr"]])


def belongs_to_gradient(name_stack: NameStack, bodies: Sequence[AnyJaxpr]) -> bool:
    """True if differentiation has marked a name stack, or there is a backward pass in one of the bodies."""
    marks = _compat.name_stack_marks(name_stack)
    return JVP in marks or TRANSPOSE in marks or any(map(has_transpose, bodies))


def has_transpose(jaxpr: AnyJaxpr) -> bool:
    """True if a body, or a body in it, has a backward pass."""
    return any(
        TRANSPOSE in _compat.name_stack_marks(eqn.source_info.name_stack)
        or any(map(has_transpose, jex.jaxprs_in_params(eqn.params)))
        for eqn in open_jaxpr(jaxpr).eqns
    )


class Visibility:
    """Decides which loops can read another's values by iteration; `current` gives what replaces a cond's index."""

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

    def can_read(self, reader: int | None, producer: int | None) -> bool:
        """True if `producer` encloses the loop `reader`, or has the iteration space of a loop that encloses it."""
        source, own = self.path(producer), self.path(reader)
        if source == own[: len(source)]:
            return True
        return len(source) <= len(own) and self.iteration_space(producer) == self.iteration_space(reader)[: len(source)]

    def same_iterations(self, loop: int, other: int) -> bool:
        """True if iteration i of one loop can read the results of iteration i of the other."""
        return self.iteration_space(loop) == self.iteration_space(other)

    def iteration_space(self, loop: int | None) -> tuple[Hashable, ...]:
        """Trip counts of the loops around and of itself, outermost first; for a branch its position and the index."""
        return tuple(map(self._extent, self.path(loop)))

    def _extent(self, loop: int) -> Hashable:
        opened = self._loops[loop]
        if (of_cond := opened.cond_branch) is None:
            return opened.length
        return (self._current(of_cond.index), of_cond.branch.position, of_cond.branch.of)


class LoopOpener:
    """Opens loops while a program is inlined."""

    def __init__(self) -> None:
        self.loops: list[OpenLoop] = []
        self.visibility = Visibility(self.loops)
        self._home: dict[jex.Var, int] = {}
        """For each variable of a body its loop."""
        self._sliced: dict[jex.Var, Atom] = {}
        """For each slice its array."""
        self._stacked: dict[jex.Var, tuple[int, Atom]] = {}

    def begin(
        self, eqn: jex.JaxprEqn, parent: int | None, *, manual: int | None = None, cond_branch: CondBranch | None = None
    ) -> int:
        """A new loop or branch; `eqn` is its scan or cond, under the full name stack."""
        self.loops.append(OpenLoop(eqn=eqn, parent=parent, manual=manual, cond_branch=cond_branch))
        return len(self.loops) - 1

    def note(self, equation: Equation) -> None:
        """Remembers the loop of an equation in a body."""
        if equation.loop is not None:
            self._home.update(dict.fromkeys(equation.eqn.outvars, equation.loop))

    def slice(self, loop: int, array: Atom, aval: jax.core.AbstractValue) -> Equation | Atom:
        """The equation of the iteration's slice of an array, or the value that an earlier loop stacked there."""
        source, value = self._stacked.get(array, (None, None)) if isinstance(array, jex.Var) else (None, None)
        visibility = self.visibility
        if source is None or not visibility.same_iterations(loop, source) or source in visibility.path(loop):
            part = jex.Var(aval)
            self._sliced[part] = array
            return self.boundary(SLICE, loop, [array], [part])
        origin = self._sliced.get(value) if isinstance(value, jex.Var) else None
        if origin is not None and self.can_read(self.loops[loop].parent, origin):
            return self.slice(loop, origin, aval)
        return value

    def can_read(self, loop: int | None, atom: Atom) -> bool:
        """True if an equation of a loop can read an atom."""
        return self.visibility.can_read(loop, self._home.get(atom) if isinstance(atom, jex.Var) else None)

    def stack(self, loop: int, value: Atom, result: jex.Var) -> Equation:
        """The equation that stacks a value of every iteration."""
        self._stacked[result] = (loop, value)
        return self.boundary(STACK, loop, [value], [result])

    def boundary(
        self, name: str, loop: int, reads: Sequence[Atom], writes: Sequence[jex.Var], **params: Any
    ) -> Equation:
        """An equation that takes values into the body of a loop or out of it."""
        opened = self.loops[loop]
        params.update(loop=loop, length=opened.length, reverse=opened.reverse)
        eqn = boundary_eqn(opened.eqn, name, reads, writes, **params)
        equation = Equation(eqn, loop=loop if name in BODY_INPUTS else opened.parent, manual=opened.manual)
        self.note(equation)
        return equation


def is_loop_boundary(eqn: jex.JaxprEqn) -> bool:
    """True if an equation takes values into or out of the body of an open loop or branch."""
    return eqn.primitive.name in LOOP_BOUNDARIES


def stack_writers(eqn: jex.JaxprEqn) -> tuple[int, ...]:
    """For each operand of a `loop_stack` the loop that stacks it, in the order in which they run."""
    return tuple(eqn.params.get(STACK_WRITERS, (eqn.params["loop"],)))


def with_loop_ids(params: Mapping[str, Any], new_id: Callable[[int], int | None]) -> dict[str, Any]:
    """The parameters of a boundary equation where loops and branches have other ids."""
    changed = dict(params, loop=new_id(params["loop"]))
    for name in (STACK_WRITERS, BRANCHES):
        if name in params:
            changed[name] = tuple(map(new_id, params[name]))
    return changed


def is_sound(program: FlatProgram) -> bool:
    """True if every equation can read its operands, and the equations of each body are neighbours.

    Moving and replacing equations keeps it so for all programs that we know; a program for which it does not is traced
    with closed loops.
    """
    visibility = Visibility(program.loops)
    home: dict[jex.Var, int | None] = {}
    left: set[int] = set()
    around: tuple[int, ...] = ()
    for equation in program.equations:
        path = visibility.path(equation.loop)
        if not left.isdisjoint(path):
            return False
        left.update(set(around) - set(path))
        around = path
        reads = operands_and_loops(equation, program.loops)
        if not all(visibility.can_read(reader, home[v]) for v, reader in reads if v in home):
            return False
        home.update(dict.fromkeys(equation.eqn.outvars, equation.loop))
    known = {*home, *program.invars, *(v for v, _ in program.constants)}
    return all(v in known for equation in program.equations for v in equation.variables())


def operands_and_loops(equation: Equation, loops: Sequence[OpenLoop]) -> Iterator[tuple[jex.Var, int | None]]:
    """The variables that an equation reads, each with the loop in whose iterations it reads them."""
    eqn, reader = equation.eqn, equation.loop
    if eqn.primitive.name in (COND_END, STACK):
        is_stack = eqn.primitive.name == STACK
        readers = stack_writers(eqn) if is_stack else (equation.loop, *eqn.params[BRANCHES])
        yield from ((atom, loop) for atom, loop in zip(eqn.invars, readers, strict=True) if isinstance(atom, jex.Var))
        return
    if is_loop_boundary(eqn):
        reader = eqn.params["loop"] if eqn.primitive.name == END else loops[eqn.params["loop"]].parent
    yield from ((variable, reader) for variable in equation.variables())
