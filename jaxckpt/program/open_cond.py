"""Opens conds: the equations of their branches join the program, each branch as a loop of one iteration.

1. Opened are conds without effects that belong to a gradient.
2. A later cond over the same index reads, in each branch, what the same branch of an earlier cond computes: the
   residual of a branch.
3. A cond with no such residual stays closed (`conds_to_keep_closed`): there is nothing in it to decide on, and all of
   it may be recomputed.

`outline` puts branches back into cond equations.
"""

from collections.abc import Iterator, Sequence

import jax.core
import jax.extend.core as jex
from jax.extend.source_info_util import NameStack

from jaxckpt import _compat
from jaxckpt.ir.regions import COND_END, Branch
from jaxckpt.program.flat_program import Atom, CondBranch, CondKey, Equation, FlatProgram, with_name_stack
from jaxckpt.program.open_scan import (
    BRANCHES,
    LoopOpener,
    Visibility,
    belongs_to_gradient,
    has_transpose,
    operands_and_loops,
)

_UNDEFINED = frozenset({"empty", "empty2"})
"""Primitives of undefined arrays: a branch returns one in place of another branch's residual."""


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


class CondOpener:
    """Opens the branches of conds, but for those of the keys `closed`, while a program is inlined."""

    def __init__(self, loop_opener: LoopOpener, closed: frozenset[CondKey]) -> None:
        self._loop_opener = loop_opener
        self._closed = closed
        self._conds = 0
        self._last_number: dict[CondKey, int] = {}
        self._results: dict[jex.Var, tuple[Sequence[int], Sequence[Atom]]] = {}
        self._undefined: set[jex.Var] = set()

    def begin(self, eqn: jex.JaxprEqn, index: Atom, parent: int | None, *, manual: int | None) -> list[int]:
        """The branches of a cond (`eqn`, under its full name stack) as loops; none where it stays closed."""
        key = self._key(parent)
        if key in self._closed:
            return []
        cond, of = self._conds, len(eqn.params["branches"])
        self._conds += 1
        return [
            self._loop_opener.begin(
                with_name_stack(eqn, eqn.source_info.name_stack.extend(f"branch_{position}")),
                parent,
                manual=manual,
                cond_branch=CondBranch(index=index, branch=Branch(cond=cond, position=position, of=of), key=key),
            )
            for position in range(of)
        ]

    def _key(self, parent: int | None) -> CondKey:
        path = self._loop_opener.visibility.path(parent)
        enclosing = (self._loop_opener.loops[loop].cond_branch for loop in reversed(path))
        around = next((branch for branch in enclosing if branch is not None), None)
        outer = () if around is None else (*around.key, around.branch.position)
        self._last_number[outer] = number = self._last_number.get(outer, -1) + 1
        return (*outer, number)

    def inner_operand(self, loop: int, operand: Atom) -> Atom:
        """The operand as a branch reads it: a result of the same branch of an earlier cond, or the operand itself."""
        if not isinstance(operand, jex.Var) or operand not in self._results:
            return operand
        own = self._loop_opener.loops[loop].cond_branch
        assert own is not None, "it is a branch"
        loops, values = self._results[operand]
        position = own.branch.position
        if len(loops) != own.branch.of or not self._loop_opener.visibility.same_iterations(loop, loops[position]):
            return operand
        return values[position] if self._loop_opener.can_read(loop, values[position]) else operand

    def note(self, equation: Equation) -> None:
        """Remembers undefined arrays, which a branch returns in place of another branch's residual."""
        eqn = equation.eqn
        is_view = eqn.primitive.name == "broadcast_in_dim" and self._is_undefined(eqn.invars[0])
        if is_view or eqn.primitive.name in _UNDEFINED:
            self._undefined.update(eqn.outvars)

    def end(self, loops: Sequence[int], index: Atom, values: Sequence[Atom], result: jex.Var) -> Equation | Atom:
        """The equation of a cond's result; where all branches return one value from outside the cond, that value."""
        known = [value for value in values if not self._is_undefined(value)] or list(values[:1])
        parent = self._loop_opener.loops[loops[0]].parent
        if all(value is known[0] for value in known) and self._loop_opener.can_read(parent, known[0]):
            return known[0]
        self._results[result] = (loops, values)
        reads, branches = [index, *values], {BRANCHES: tuple(loops)}
        return self._loop_opener.boundary(COND_END, loops[0], reads, [result], **branches)

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
