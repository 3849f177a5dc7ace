"""Opens loops and conds: equations of bodies join the program, between equations that carry, slice, stack and select.

1. Opened are scans without effects that belong to a gradient: differentiated ones, and those with a gradient inside.
   So are conds, each branch as a loop of one iteration, and whiles with a gradient inside: JAX differentiates no while
   in reverse. How often a while iterates is not known; figures are those of one iteration.
2. What a later scan slices and an earlier one stacked is one value of an iteration: the later body reads it where the
   earlier body computes it. So a forward scan and its backward scan need not be paired: their values are. A later cond
   over the same index reads, in each branch, what the same branch of an earlier cond computes.
3. What a scan carries on unchanged, and what it stacks unchanged, is read from its source.
4. A cond whose branches neither compute nor read such a residual stays closed (`conds_to_keep_closed`): nothing in it
   is to be decided on, and all of it may be recomputed.

`outline` puts open bodies back into scans, whiles and conds. The added primitives are explained in
`jaxckpt.ir.regions`.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any

import jax.core
import jax.extend.core as jex
from jax.extend.source_info_util import NameStack

from jaxckpt import _compat
from jaxckpt.ir.regions import BODY_INPUTS, COND_END, END, LOOP_BOUNDARIES, SLICE, STACK, Branch
from jaxckpt.ir.scope import JVP, TRANSPOSE
from jaxckpt.program.flat_program import (
    AnyJaxpr,
    Atom,
    CondBranch,
    CondKey,
    Equation,
    FlatProgram,
    OpenLoop,
    Params,
    boundary_eqn,
    is_while,
    open_jaxpr,
    with_name_stack,
)

IS_PROBE = "shown"
"""A parameter of `loop_stack`: the stack exists to be looked at, and no other loop reads from it."""
STACK_WRITERS = "stretches"
"""A parameter of `loop_stack`: the loops that stack into it one after the other, if there are several."""
BRANCHES = "branches"
"""A parameter of `cond_end`: the branches of its cond."""
_UNDEFINED = frozenset({"empty", "empty2"})
"""Primitives of undefined arrays: a branch returns one in place of another branch's residual."""


def can_open_loop(eqn: jex.JaxprEqn, name_stack: NameStack) -> bool:
    """True if an equation is a scan without effects that is part of a gradient, or a while with a gradient inside."""
    if _compat.lasting_effects(eqn.effects):
        return False
    if is_while(eqn):
        marks = _compat.name_stack_marks(name_stack)
        is_differentiated = JVP in marks or TRANSPOSE in marks
        return not is_differentiated and has_transpose(eqn.params["body_jaxpr"]) and not eqn.params["cond_jaxpr"].consts
    if eqn.primitive.name != "scan" or eqn.params["length"] < 1:
        return False
    return belongs_to_gradient(name_stack, [eqn.params["jaxpr"]])


def can_open_cond(eqn: jex.JaxprEqn, reads: Sequence[Atom], name_stack: NameStack) -> bool:
    """True if an equation is a cond over arrays, without effects, that is part of a gradient.

    A cond over platforms is not opened: the compiler keeps one branch.
    """
    if eqn.primitive.name != "cond" or not isinstance(reads[0], jex.Var) or _compat.lasting_effects(eqn.effects):
        return False
    if eqn.params.get("branches_platforms") is not None:
        return False
    if not all(isinstance(atom.aval, jax.core.ShapedArray) for atom in (*eqn.invars, *eqn.outvars)):
        return False
    return belongs_to_gradient(name_stack, eqn.params["branches"])


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
        if opened.is_while:
            return ("while", loop)  # no two whiles are known to iterate equally often
        if (of_cond := opened.cond_branch) is None:
            return opened.length
        return (self._current(of_cond.index), of_cond.branch.position, of_cond.branch.of)


class BodyOpener:
    """Opens loops, and branches of conds but for those of the keys `closed`, while a program is inlined."""

    def __init__(self, closed: frozenset[CondKey]) -> None:
        self.loops: list[OpenLoop] = []
        self.visibility = Visibility(self.loops)
        self._home: dict[jex.Var, int] = {}
        """For each variable of a body its loop."""
        self._sliced: dict[jex.Var, Atom] = {}
        """For each slice its array."""
        self._stacked: dict[jex.Var, tuple[int, Atom]] = {}
        self._closed = closed
        self._conds = 0
        self._last_number: dict[CondKey, int] = {}
        self._results: dict[jex.Var, tuple[Sequence[int], Sequence[Atom]]] = {}
        """For each result of a cond the branches, and the value of each."""
        self._undefined: set[jex.Var] = set()

    def begin(
        self, eqn: jex.JaxprEqn, parent: int | None, *, manual: int | None = None, cond_branch: CondBranch | None = None
    ) -> int:
        """A new loop or branch; `eqn` is its scan or cond, under the full name stack."""
        self.loops.append(OpenLoop(eqn=eqn, parent=parent, manual=manual, cond_branch=cond_branch))
        return len(self.loops) - 1

    def note(self, equation: Equation) -> None:
        """Remembers the loop of an equation in a body, and undefined arrays."""
        eqn = equation.eqn
        if equation.loop is not None:
            self._home.update(dict.fromkeys(eqn.outvars, equation.loop))
        is_view = eqn.primitive.name == "broadcast_in_dim" and self._is_undefined(eqn.invars[0])
        if is_view or eqn.primitive.name in _UNDEFINED:
            self._undefined.update(eqn.outvars)

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

    def begin_cond(self, eqn: jex.JaxprEqn, index: Atom, parent: int | None, *, manual: int | None) -> list[int]:
        """The branches of a cond (`eqn`, under its full name stack) as loops; none where it stays closed."""
        key = self._key(parent)
        if key in self._closed:
            return []
        cond, of = self._conds, len(eqn.params["branches"])
        self._conds += 1
        return [
            self.begin(
                with_name_stack(eqn, eqn.source_info.name_stack.extend(f"branch_{position}")),
                parent,
                manual=manual,
                cond_branch=CondBranch(index=index, branch=Branch(cond=cond, position=position, of=of), key=key),
            )
            for position in range(of)
        ]

    def _key(self, parent: int | None) -> CondKey:
        path = self.visibility.path(parent)
        enclosing = (self.loops[loop].cond_branch for loop in reversed(path))
        around = next((branch for branch in enclosing if branch is not None), None)
        outer = () if around is None else (*around.key, around.branch.position)
        self._last_number[outer] = number = self._last_number.get(outer, -1) + 1
        return (*outer, number)

    def inner_operand(self, loop: int, operand: Atom) -> Atom:
        """The operand as a branch reads it: a result of the same branch of an earlier cond, or the operand itself."""
        if not isinstance(operand, jex.Var) or operand not in self._results:
            return operand
        own = self.loops[loop].cond_branch
        assert own is not None, "it is a branch"
        loops, values = self._results[operand]
        position = own.branch.position
        if len(loops) != own.branch.of or not self.visibility.same_iterations(loop, loops[position]):
            return operand
        return values[position] if self.can_read(loop, values[position]) else operand

    def end(self, loops: Sequence[int], index: Atom, values: Sequence[Atom], result: jex.Var) -> Equation | Atom:
        """The equation of a cond's result; where all branches return one value from outside the cond, that value."""
        known = [value for value in values if not self._is_undefined(value)] or list(values[:1])
        parent = self.loops[loops[0]].parent
        if all(value is known[0] for value in known) and self.can_read(parent, known[0]):
            return known[0]
        self._results[result] = (loops, values)
        reads, branches = [index, *values], {BRANCHES: tuple(loops)}
        return self.boundary(COND_END, loops[0], reads, [result], **branches)

    def _is_undefined(self, atom: Atom) -> bool:
        return isinstance(atom, jex.Var) and atom in self._undefined


def conds_to_keep_closed(program: FlatProgram) -> frozenset[CondKey]:
    """The conds without a gradient inside whose branches neither compute nor read a residual of a branch."""
    branches = [(loop.cond_branch, loop.eqn) for loop in program.loops if loop.cond_branch is not None]
    with_residuals = set(_conds_with_residuals(program))
    return frozenset(
        of_cond.key
        for of_cond, eqn in branches
        if of_cond.branch.cond not in with_residuals and not any(map(has_transpose, eqn.params["branches"]))
    )


def _conds_with_residuals(program: FlatProgram) -> Iterator[int]:
    """Pairs of conds, one after the other, of which a branch of one computes what a branch of the other reads."""
    path = Visibility(program.loops).path
    home = {v: equation.loop for equation in program.equations for v in equation.eqn.outvars}
    for equation in program.equations:
        for variable, reader in operands_and_loops(equation, program.loops):
            source = home.get(variable)
            if source is not None and reader is not None:
                branches = (program.loops[loop].cond_branch for loop in set(path(source)) ^ set(path(reader)))
                differing = list(filter(None, branches))
                yield from (branch.branch.cond for branch in differing if len(differing) > 1)


def is_loop_boundary(eqn: jex.JaxprEqn) -> bool:
    """True if an equation takes values into or out of the body of an open loop or branch."""
    return eqn.primitive.name in LOOP_BOUNDARIES


def stack_writers(eqn: jex.JaxprEqn) -> tuple[int, ...]:
    """For each operand of a `loop_stack` the loop that stacks it, in the order in which they run."""
    return tuple(eqn.params.get(STACK_WRITERS, (eqn.params["loop"],)))


def with_loop_ids(params: Params, new_id: Callable[[int], int | None]) -> Params:
    """The parameters of a boundary equation where loops and branches have other ids."""
    changed = dict(params, loop=new_id(params["loop"]))
    for name in (STACK_WRITERS, BRANCHES):
        if name in params:
            changed[name] = tuple(map(new_id, params[name]))
    return changed


def is_sound(program: FlatProgram) -> bool:
    """True if every equation can read its operands, which stand before it, and those of each body are neighbours.

    Moving and replacing equations keeps it so for all programs that we know; a program for which it does not is traced
    with closed loops.
    """
    visibility = Visibility(program.loops)
    home: dict[jex.Var, int | None] = dict.fromkeys([*program.invars, *(v for v, _ in program.constants)])
    left: set[int] = set()
    around: tuple[int, ...] = ()
    for equation in program.equations:
        path = visibility.path(equation.loop)
        if not left.isdisjoint(path):
            return False
        left.update(set(around) - set(path))
        entered, around = set(path) - set(around), path
        reads = (*operands_and_loops(equation, program.loops), *indices_of(entered, program.loops))
        if not all(v in home and visibility.can_read(reader, home[v]) for v, reader in reads):
            return False
        home.update(dict.fromkeys(equation.eqn.outvars, equation.loop))
    return True


def indices_of(branches: Iterable[int], loops: Sequence[OpenLoop]) -> Iterator[tuple[jex.Var, int | None]]:
    """The variables that select some branches, each with the loop in whose iterations the cond stands."""
    for loop in branches:
        cond_branch = loops[loop].cond_branch
        if cond_branch is not None and isinstance(cond_branch.index, jex.Var):
            yield cond_branch.index, loops[loop].parent


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
