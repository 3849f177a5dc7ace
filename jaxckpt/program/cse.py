"""What the user's own `jax.checkpoint` computes again is found in the forward pass and read from there.

Value numbering: two equations of the same primitive, parameters and operands compute the same. Only equations
marked `again` are ever merged, into any earlier one; so the user's checkpoints are undone and nothing else is
changed. `optimization_barrier`s among them go away, and so do the roundings to a value's own precision that a
checkpoint's policy leaves on what it saves: both are there to forbid exactly this. Bodies are the same if their
equations are; other parameters that cannot be compared only if they are one object. What reads nothing (zeros, an
iota) stays where it is, and only counts as the same: merged, it would tie one end of the step to the other. In the
bodies of open loops of equal length slices of one array are the same in equal turns; so what a checkpoint in a body
computes again is found in the forward loop.

Read after `inline`. Complexity: linear.
"""

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np

from jaxckpt.ir.branch import COND_END
from jaxckpt.ir.loop import SLICE
from jaxckpt.program.flat_program import JAXPRS, Atom, Equation, FlatProgram, OpenLoop
from jaxckpt.program.inline import constants_of, open_jaxpr
from jaxckpt.program.open_scan import Visibility


def eliminate_common_subexpressions(program: FlatProgram) -> FlatProgram:
    """Replaces equations marked `again` by the earlier ones that compute the same.

    Args:
      program: Inlined; effects of a merged equation happen once.

    Returns:
      A program whose results are the same; without a checkpoint it is the program itself.
    """
    if not any(equation.in_user_remat or _rounds_nothing(equation.eqn) for equation in program.equations):
        return program
    merger = _Merger(program.loops)
    for equation in program.equations:
        merger.add(equation)
    return program.replace(
        equations=tuple(merger.equations),
        outvars=tuple(map(merger.current, program.outvars)),
        loops=tuple(map(merger.settled, program.loops)),
    )


class _Merger:
    def __init__(self, loops: Sequence[OpenLoop]) -> None:
        self.equations: list[Equation] = []
        self._visibility = Visibility(loops, self.current)
        self._branches = frozenset(loop for loop, opened in enumerate(loops) if opened.cond_branch is not None)
        self._loop: dict[Any, int | None] = {}
        self._instead: dict[Any, Atom] = {}
        self._made: dict[Hashable, Sequence[Any]] = {}
        self._number: dict[Any, Any] = {}
        self._keys = _Keys()

    def add(self, equation: Equation) -> None:
        eqn = equation.eqn
        reads = list(map(self.current, eqn.invars))
        if _rounds_nothing(eqn):
            self._instead.update(zip(eqn.outvars, reads, strict=True))
            return
        key: Hashable = self._keys.of(eqn, [self._numbered(atom) for atom in reads])
        if equation.manual is not None:
            key = (key, equation.manual)
        if eqn.primitive.name == SLICE or not self._branches.isdisjoint(self._visibility.path(equation.loop)):
            key = (key, self._visibility.iteration_space(equation.loop))
        rootless = not any(isinstance(atom, jex.Var) for atom in reads)
        seen = key in self._made and all(self._sees(equation.loop, v) for v in self._made[key])
        if equation.in_user_remat and seen and not rootless:
            self._instead.update(zip(eqn.outvars, self._made[key], strict=True))
        elif equation.in_user_remat and eqn.primitive.name == "optimization_barrier":
            self._instead.update(zip(eqn.outvars, reads, strict=True))
        else:
            first = self._made.setdefault(key, eqn.outvars)
            self._number.update(zip(eqn.outvars, first, strict=True))
            changed = any(new is not old for new, old in zip(reads, eqn.invars, strict=True))
            eqn = eqn.replace(invars=reads) if changed else eqn
            self._loop.update(dict.fromkeys(eqn.outvars, equation.loop))
            self.equations.append(replace(equation, eqn=eqn))

    def _sees(self, loop: int | None, atom: Atom) -> bool:
        """Whether an equation of a loop can read what may stand in another."""
        return not isinstance(atom, jex.Var) or self._visibility.can_read(loop, self._loop.get(atom))

    def current(self, atom: Atom) -> Atom:
        return self._instead.get(atom, atom) if isinstance(atom, jex.Var) else atom

    def settled(self, loop: OpenLoop) -> OpenLoop:
        """A loop; a branch with what says now whether it runs."""
        cond_branch = loop.cond_branch
        return (
            loop
            if cond_branch is None
            else replace(loop, cond_branch=replace(cond_branch, index=self.current(cond_branch.index)))
        )

    def _numbered(self, atom: Atom) -> Atom:
        """The first variable that holds the same; the forward pass itself may compute something twice."""
        return self._number.get(atom, atom) if isinstance(atom, jex.Var) else atom


def _rounds_nothing(eqn: Any) -> bool:
    if eqn.primitive.name != "reduce_precision":
        return False
    kept = jnp.finfo(eqn.outvars[0].aval.dtype)
    return (eqn.params["exponent_bits"], eqn.params["mantissa_bits"]) == (kept.nexp, kept.nmant)


class _Keys:
    """Makes keys that are equal only for equations that compute the same."""

    def __init__(self) -> None:
        self._bodies: dict[int, Hashable] = {}

    def of(self, eqn: Any, operands: Sequence[Any]) -> Hashable:
        """The key of an equation over operands: variables, their numbers, or literals."""
        params = tuple(
            (name, self._comparable(param))
            for name, param in sorted(eqn.params.items())
            if _decides(eqn.primitive.name, name)
        )
        return (eqn.primitive, params, tuple(map(_operand, operands)), id(eqn.ctx))

    def _comparable(self, param: Any) -> Hashable:
        """The type stands beside the value: 1, 1.0 and True are equal, and not the same parameter."""
        if isinstance(param, JAXPRS):
            if id(param) not in self._bodies:
                self._bodies[id(param)] = self._body(param)
            return self._bodies[id(param)]
        if isinstance(param, (tuple, list)):
            return (type(param), tuple(map(self._comparable, param)))
        try:
            hash(param)
        except TypeError:
            return id(param)
        return (type(param), param)

    def _body(self, closed: Any) -> Hashable:
        """Types of the arguments, the constants as objects, the equations over numbered variables."""
        jaxpr = open_jaxpr(closed)
        arguments = [*jaxpr.constvars, *jaxpr.invars]
        numbers: dict[Any, int] = {v: i for i, v in enumerate(arguments)}
        keys: list[Hashable] = [tuple(str(v.aval) for v in arguments), *map(id, constants_of(closed))]
        for eqn in jaxpr.eqns:
            keys.append(self.of(eqn, [_number(numbers, v) for v in eqn.invars]))
            for variable in eqn.outvars:
                numbers[variable] = len(numbers)
        keys.extend(_operand(_number(numbers, v)) for v in jaxpr.outvars)
        return tuple(keys)


def _decides(primitive: str, param: str) -> bool:
    """What a custom derivative says about derivatives does not change what the call computes; nor does a name."""
    if primitive.startswith(("custom_jvp_call", "custom_vjp_call")):
        return param in ("call_jaxpr", "fun_jaxpr")
    if primitive in (SLICE, COND_END):
        return False
    return not (primitive in ("jit", "pjit") and param == "name")


def _number(numbers: dict[Any, int], atom: Atom) -> Any:
    return numbers[atom] if isinstance(atom, jex.Var) else atom


def _operand(atom: Any) -> Hashable:
    """A literal is its type and its bits, so that nan is nan and 0.0 is not -0.0."""
    if not isinstance(atom, jex.Literal):
        return atom
    try:
        return (str(atom.aval), np.asarray(atom.val).tobytes())
    except TypeError:
        return id(atom.val)
