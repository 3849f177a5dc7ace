"""Conds are opened: the equations of their branches stand in the program, each branch a loop of one turn.

Opened are conds without effects that belong to a gradient. What a later cond takes as an earlier one over the same
index gave it is, in one branch, the value that this branch has made: the later branch reads it there. That is what a
residual of a branch is, and it is decided on like any other. A cond of which nobody reads a branch in that way is left
whole (`conds_to_keep_closed`): nothing in it waits, and all of it may be computed again.

`jaxckpt.outline.cond` puts branches back into cond equations.

Read after `program` and `loops`; `inline` calls it.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import jax.core
import jax.extend.core as jex

from jaxckpt import _compat
from jaxckpt.ir.branch import Branch
from jaxckpt.ir.scope import JVP, TRANSPOSE
from jaxckpt.program.flat_program import Atom, CondBranch, CondKey, Equation, FlatProgram
from jaxckpt.program.open_scan import LoopOpener, has_transpose, loop_paths, operands_and_loops

_UNDEFINED = frozenset({"empty", "empty2"})
"""Primitives that make what a branch gives in the place of another one's residual: anything."""


def can_open_cond(eqn: Any, reads: Sequence[Atom], name_stack: Any) -> bool:
    """Whether a cond can be opened and it may help: without effects, over arrays, part of a gradient.

    Which branch is a platform's is known when the step is compiled, and all others are gone by then.
    """
    if eqn.primitive.name != "cond" or not isinstance(reads[0], jex.Var) or _compat.lasting_effects(eqn.effects):
        return False
    if eqn.params.get("branches_platforms") is not None:
        return False
    if not all(isinstance(atom.aval, jax.core.ShapedArray) for atom in (*eqn.invars, *eqn.outvars)):
        return False
    marks = _compat.name_stack_marks(name_stack)
    return JVP in marks or TRANSPOSE in marks or any(map(has_transpose, eqn.params["branches"]))


class CondOpener:
    """Opens the branches of conds while a program is inlined.

    Args:
      opener: Opens its loops, and numbers branches among them.
      whole: Conds that stay whole, by their keys.
    """

    def __init__(self, opener: LoopOpener, closed_conds: frozenset[CondKey]) -> None:
        self._opener = opener
        self._whole = closed_conds
        self._conds = 0
        self._number: dict[CondKey, int] = {}
        self._given: dict[Any, tuple[Sequence[int], Sequence[Atom]]] = {}
        self._undefined: set[Any] = set()

    def begin(self, eqn: Any, index: Atom, parent: int | None, *, manual: int | None) -> list[int]:
        """Its branches, as loops, none where it stays whole; `eqn` is the cond, under its whole name stack."""
        key = self._key(parent)
        if key in self._whole:
            return []
        cond, of = self._conds, len(eqn.params["branches"])
        self._conds += 1
        return [
            self._opener.begin(
                _named(eqn, position),
                parent,
                manual=manual,
                cond_branch=CondBranch(index=index, branch=Branch(cond=cond, position=position, of=of), key=key),
            )
            for position in range(of)
        ]

    def name_stack(self, loop: int) -> Any:
        """The name stack of what stands in a branch."""
        return self._opener.loops[loop].eqn.source_info.name_stack

    def _key(self, parent: int | None) -> CondKey:
        forks = (self._opener.loops[loop].cond_branch for loop in reversed(self._opener.visibility.path(parent)))
        around = next((cond_branch for cond_branch in forks if cond_branch is not None), None)
        outer = () if around is None else (*around.key, around.branch.position)
        self._number[outer] = number = self._number.get(outer, -1) + 1
        return (*outer, number)

    def inside(self, loop: int, operand: Atom) -> Atom:
        """What an operand is in a branch: what the same branch of an earlier cond has made, or the operand itself."""
        if not isinstance(operand, jex.Var) or operand not in self._given:
            return operand
        cond_branch = self._opener.loops[loop].cond_branch
        assert cond_branch is not None, "it is a branch"
        loops, values = self._given[operand]
        position = cond_branch.branch.position
        if len(loops) != cond_branch.branch.of or not self._opener.visibility.same_iterations(loop, loops[position]):
            return operand
        return values[position] if self._opener.can_read_atom(loop, values[position]) else operand

    def note(self, equation: Equation) -> None:
        """Remembers what is made of nothing: it stands in the place of other branches' residuals."""
        eqn = equation.eqn
        views = eqn.primitive.name == "broadcast_in_dim" and self._is_undefined(eqn.invars[0])
        if views or eqn.primitive.name in _UNDEFINED:
            self._undefined.update(eqn.outvars)

    def end(self, loops: Sequence[int], index: Atom, values: Sequence[Atom], result: Any) -> Equation | Atom:
        """What a cond gives, of a value of each branch; the value itself where all mean one that was there before."""
        known = [value for value in values if not self._is_undefined(value)] or list(values[:1])
        parent = self._opener.loops[loops[0]].parent
        if all(value is known[0] for value in known) and self._opener.can_read_atom(parent, known[0]):
            return known[0]
        self._given[result] = (loops, values)
        return self._opener.fork_end(loops, index, values, result)

    def _is_undefined(self, atom: Atom) -> bool:
        return isinstance(atom, jex.Var) and atom in self._undefined


def conds_to_keep_closed(program: FlatProgram) -> frozenset[CondKey]:
    """The conds of which no branch makes or reads what waits for another cond, and in which there is no gradient.

    Args:
      program: As it stands when all dead equations are dropped.
    """
    forks = {
        loop.cond_branch.branch.cond: (loop.cond_branch, loop.eqn)
        for loop in program.loops
        if loop.cond_branch is not None
    }
    read = set(_sharing(program))
    return frozenset(
        cond_branch.key
        for cond, (cond_branch, eqn) in forks.items()
        if cond not in read and not any(map(has_transpose, eqn.params["branches"]))
    )


def _named(eqn: Any, position: int) -> Any:
    """A cond under a name stack that ends with one of its branches."""
    info = eqn.source_info
    return eqn.replace(source_info=info.replace(name_stack=info.name_stack.extend(f"branch_{position}")))


def _sharing(program: FlatProgram) -> Iterator[int]:
    """Conds of which a branch makes what the branch of another one reads, and those others."""
    paths = loop_paths(program.loops)
    home = {v: equation.loop for equation in program.equations for v in equation.eqn.outvars}
    for equation in program.equations:
        for variable, reader in operands_and_loops(equation, program.loops):
            made = home.get(variable)
            if made is not None and reader is not None:
                differ = set(paths[made]) ^ set(paths[reader])
                forks = [cond_branch for loop in differ if (cond_branch := program.loops[loop].cond_branch) is not None]
                yield from (cond_branch.branch.cond for cond_branch in forks if len(forks) > 1)
