"""Common subexpression elimination (value numbering) of clones and repetitions, and dead code elimination.

Two equations with the same primitive, parameters and operands compute the same. Rules:

1. Clones (`Equation.in_user_remat`) are replaced by any earlier equation, so that a user's `jax.checkpoint` is undone.
   Where a step repeats a product, equations that it repeats are replaced: two `jax.jvp` of one network compute its
   values twice, and XLA once, and so it is with a `jax.custom_vjp` whose backward computes a product of the forward
   again. Nothing else changes.
2. `optimization_barrier`s among the clones go, and so do roundings of a value to its own precision, which a
   checkpoint's policy leaves on what it saves: both exist to forbid rule 1.
3. Bodies are equal if their equations are. Other parameters that cannot be compared are equal if they are one object.
4. A clone that reads nothing (zeros, an iota) stays: replaced, it would tie one end of the step to the other. It still
   counts as equal where others read it.
5. Slices of one array in bodies of open loops with equal trip counts are equal iteration by iteration. So a clone in a
   backward loop finds its original in the forward loop.

Complexity: linear.
"""

from collections.abc import Hashable, Sequence, Set
from dataclasses import replace

import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np

from jaxckpt.ir.regions import CARRY, COND_END, END, SLICE
from jaxckpt.program.flat_program import (
    AnyJaxpr,
    Atom,
    Equation,
    FlatProgram,
    OpenLoop,
    constants_of,
    open_jaxpr,
    renamed,
)
from jaxckpt.program.inline import CUSTOM_DERIVATIVES, JITS
from jaxckpt.program.open_loops import Visibility

_PRODUCTS = frozenset({"dot_general", "conv_general_dilated"})
_LEAST_BITS_WITH_INFINITIES = 16


def eliminate_common_subexpressions(program: FlatProgram) -> FlatProgram:
    """Replaces clones of the user's own `jax.checkpoint`, and repetitions, by equal equations before them."""
    if _may_repeat(program.equations):
        elimination = _Elimination.of(program, repetitions=True)
        if elimination.repeated & _PRODUCTS:
            return elimination.program(program)
    if any(equation.in_user_remat or _is_identity_rounding(equation.eqn) for equation in program.equations):
        return _Elimination.of(program, repetitions=False).program(program)
    return program


def _may_repeat(equations: Sequence[Equation]) -> bool:
    """True if two products read one variable as the same operand: else none is repeated."""
    seen: set[Hashable] = set()
    for equation in equations:
        eqn = equation.eqn
        if eqn.primitive.name in _PRODUCTS and not equation.in_user_remat:
            operands = {(v, position) for position, v in enumerate(eqn.invars) if isinstance(v, jex.Var)}
            if not seen.isdisjoint(operands):
                return True
            seen |= operands
    return False


def eliminate_dead_code(program: FlatProgram) -> FlatProgram:
    """Drops equations whose results nobody reads and that have no effects, and constants that only they read.

    An equation is kept or dropped with all its results. An open loop that is needed for anything keeps its full carry.
    """
    results = {atom for atom in program.outvars if isinstance(atom, jex.Var)}
    needed = _needed(program.equations, results)
    read = results.union(*(equation.variables() for equation in needed))
    return program.replace(
        equations=needed, constants=tuple(constant for constant in program.constants if constant[0] in read)
    )


def _needed(equations: Sequence[Equation], results: Set[jex.Var]) -> tuple[Equation, ...]:
    """The equations with effects, those that compute results, and all whose results these read, in order."""
    # One walk: an equation that is needed brings its operands and, of a loop, the full carry.
    producer = {variable: equation for equation in equations for variable in equation.eqn.outvars}
    carries: dict[int, list[Equation]] = {}
    for equation in filter(_is_carry, equations):
        carries.setdefault(equation.eqn.params["loop"], []).append(equation)
    pending = [equation for equation in equations if equation.effects or not results.isdisjoint(equation.eqn.outvars)]
    needed: set[int] = set()
    while pending:
        equation = pending.pop()
        if id(equation) not in needed:
            needed.add(id(equation))
            pending += filter(None, map(producer.get, equation.variables()))
            pending += carries[equation.eqn.params["loop"]] if _is_carry(equation) else ()
    return tuple(equation for equation in equations if id(equation) in needed)


def _is_carry(equation: Equation) -> bool:
    return equation.eqn.primitive.name in (CARRY, END)


class _Elimination:
    """Value numbering of one program, equation by equation.

    Attributes:
      equations: Those that stay.
      repeated: Primitives of equations that were replaced, and are no clones.
    """

    def __init__(self, loops: Sequence[OpenLoop], *, repetitions: bool) -> None:
        self.equations: list[Equation] = []
        self.repeated: set[str] = set()
        self._repetitions = repetitions
        self._visibility = Visibility(loops, self.current)
        self._branches = frozenset(loop for loop, opened in enumerate(loops) if opened.cond_branch is not None)
        self._loop: dict[jex.Var, int | None] = {}
        self._replacement: dict[jex.Var, Atom] = {}
        self._results: dict[Hashable, Sequence[jex.Var]] = {}
        self._number: dict[jex.Var, jex.Var] = {}
        self._keys = _EquationKeys()

    @classmethod
    def of(cls, program: FlatProgram, *, repetitions: bool) -> "_Elimination":
        """The elimination of a program's clones, and of its repetitions too if it is asked to."""
        elimination = cls(program.loops, repetitions=repetitions)
        for equation in program.equations:
            elimination.add(equation)
        return elimination

    def program(self, before: FlatProgram) -> FlatProgram:
        """The program with what stays."""
        return before.replace(
            equations=tuple(self.equations),
            outvars=tuple(map(self.current, before.outvars)),
            loops=tuple(map(self.current_loop, before.loops)),
        )

    def add(self, equation: Equation) -> None:
        eqn = equation.eqn
        reads = list(map(self.current, eqn.invars))
        if _is_identity_rounding(eqn):
            self._replacement.update(zip(eqn.outvars, reads, strict=True))
            return
        key = self._key(equation, reads)
        earlier = self._results.get(key)
        is_repetition = earlier is not None and self._may_replace(equation)
        may_replace = equation.in_user_remat or is_repetition
        if may_replace and earlier is not None and self._can_share(equation.loop, reads, earlier):
            if is_repetition:
                self.repeated.add(eqn.primitive.name)
            self._replacement.update(zip(eqn.outvars, earlier, strict=True))
        elif equation.in_user_remat and eqn.primitive.name == "optimization_barrier":
            self._replacement.update(zip(eqn.outvars, reads, strict=True))
        else:
            self._number.update(zip(eqn.outvars, self._results.setdefault(key, eqn.outvars), strict=True))
            self._loop.update(dict.fromkeys(eqn.outvars, equation.loop))
            changed = any(new is not old for new, old in zip(reads, eqn.invars, strict=True))
            self.equations.append(replace(equation, eqn=eqn.replace(invars=reads) if changed else eqn))

    def _may_replace(self, equation: Equation) -> bool:
        """True for an equation outside of loops, and no clone, which may be a repetition."""
        return self._repetitions and not equation.in_user_remat and equation.loop is None and not equation.effects

    def current(self, atom: Atom) -> Atom:
        """The atom itself, or the earlier one that replaces it."""
        return renamed(atom, self._replacement)

    def current_loop(self, loop: OpenLoop) -> OpenLoop:
        """A loop; a branch with the current index of its cond."""
        if (branch := loop.cond_branch) is None:
            return loop
        return replace(loop, cond_branch=replace(branch, index=self.current(branch.index)))

    def _key(self, equation: Equation, reads: Sequence[Atom]) -> Hashable:
        # Of equal values the first counts: the forward pass itself may compute something twice.
        key = self._keys.of(equation.eqn, [renamed(atom, self._number) for atom in reads])
        if equation.manual is not None:
            key = (key, equation.manual)
        in_branch = not self._branches.isdisjoint(self._visibility.path(equation.loop))
        if in_branch or equation.eqn.primitive.name == SLICE:
            key = (key, self._visibility.iteration_space(equation.loop))
        return key

    def _can_share(self, loop: int | None, reads: Sequence[Atom], earlier: Sequence[jex.Var]) -> bool:
        """True if an equation in a loop may be replaced: it reads something, and the loop can read earlier results."""
        reads_nothing = not any(isinstance(atom, jex.Var) for atom in reads)
        return not reads_nothing and all(self._visibility.can_read(loop, self._loop.get(v)) for v in earlier)


def _is_identity_rounding(eqn: jex.JaxprEqn) -> bool:
    """True for a rounding to the bits that a type has. Of the narrow types some have no infinities: it overflows."""
    own = jnp.finfo(eqn.outvars[0].aval.dtype) if eqn.primitive.name == "reduce_precision" else None
    if own is None or own.bits < _LEAST_BITS_WITH_INFINITIES:
        return False
    return (eqn.params["exponent_bits"], eqn.params["mantissa_bits"]) == (own.nexp, own.nmant)


class _EquationKeys:
    """Computes keys that are equal only for equations that compute the same."""

    def __init__(self) -> None:
        self._bodies: dict[int, Hashable] = {}

    def of(self, eqn: jex.JaxprEqn, operands: Sequence[Atom | int]) -> Hashable:
        """The key of an equation over operands: variables, their numbers, or literals."""
        params = tuple(
            (name, self._comparable(param))
            for name, param in sorted(eqn.params.items())
            if _changes_result(eqn.primitive.name, name)
        )
        return (eqn.primitive, params, tuple(map(_operand, operands)), id(eqn.ctx))

    def _comparable(self, param: object) -> Hashable:
        """A parameter with its type: 1, 1.0 and True are equal in Python, and not the same parameter."""
        if isinstance(param, AnyJaxpr):
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

    def _body(self, closed: AnyJaxpr) -> Hashable:
        """Types of the arguments, the constants as objects, the equations over numbered variables."""
        jaxpr = open_jaxpr(closed)
        arguments = [*jaxpr.constvars, *jaxpr.invars]
        numbers: dict[jex.Var, int] = {v: i for i, v in enumerate(arguments)}
        keys: list[Hashable] = [tuple(str(v.aval) for v in arguments), *map(id, constants_of(closed))]
        for eqn in jaxpr.eqns:
            keys.append(self.of(eqn, [renamed(v, numbers) for v in eqn.invars]))
            for variable in eqn.outvars:
                numbers[variable] = len(numbers)
        keys.extend(_operand(renamed(v, numbers)) for v in jaxpr.outvars)
        return tuple(keys)


def _changes_result(primitive: str, param: str) -> bool:
    """False for parameters that the result does not depend on: names, rules of custom derivatives, ids of loops."""
    if primitive in CUSTOM_DERIVATIVES:
        return param in ("call_jaxpr", "fun_jaxpr")
    if primitive in (SLICE, COND_END):
        return False
    return not (primitive in JITS and param == "name")


def _operand(atom: Atom | int) -> Hashable:
    """A literal as its type and its bits, so that nan equals nan and 0.0 does not equal -0.0."""
    if not isinstance(atom, jex.Literal):
        return atom
    try:
        return (str(atom.aval), np.asarray(atom.val).tobytes())
    except TypeError:
        return id(atom.val)
