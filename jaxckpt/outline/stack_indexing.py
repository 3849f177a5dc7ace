"""How turns of a loop read and write their part of a whole array: by a counter handed on, or a number of each turn.

A scan's own slices and stacks are as long as the scan. Cutting an array for each stretch would copy all of it, and so
would joining what stretches have stacked. So the whole array is a constant of the scan, or handed on from turn to turn
and from stretch to stretch, and each turn slices or updates it in the place of its counter. Compilers make the same of
a scan's slices and stacks. Turns of a group count on from where the group begins, which the loop over groups counts.

The turns of a loop may be numbered instead (`IterationNumbers`): each reads its number from an array of all. XLA copies
slices whose place it knows ahead beside the kernels of a GPU, and then orders all kernels of the body anew with an eye
on time alone. Products whose results are added up over the turns, the gradients of weights, come last then, and what
they are made of stays until then: the body of a gradient that is accumulated may take twice the memory.

What a stretch hands on lies as it is indexed, the last axis innermost: a compiler gives each loop a layout of its own,
and without a word it may turn what layers pass on, so that they pass on in other kernels than those of the whole loop.

Read after `program`; `close` asks.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
from jax.experimental.layout import Layout, with_layout_constraint

from jaxckpt import _compat
from jaxckpt.program.flat_program import Atom, Equation, OpenLoop


class IterationCounter:
    """The counter of a loop: of a stretch, of groups, or of the turns of a group.

    Args:
      opened: The loop.
      stride: How many slices a turn of it goes through.
      around: For the turns of a group, the counter of the groups.

    Attributes:
      first: What its first turn gets.
      carried: What every turn gets: the place of its (first) slice.
      following: What a turn hands on.
      before: Equations that make what the first turn gets; they stand before the loop.
    """

    def __init__(self, opened: OpenLoop, *, stride: int = 1, around: "IterationCounter | None" = None):
        self._like = opened.eqn
        length, reverse = opened.eqn.params["length"], opened.eqn.params["reverse"]
        aval = jax.typeof(jnp.int32(0))
        self._step = -stride if reverse else stride
        begin = (opened.offset or 0) + ((length - 1) * stride if reverse else 0)
        self.first: Atom = jex.Literal(np.int32(begin), aval)
        self.carried, self.following = jex.Var(aval), jex.Var(aval)
        self.before: list[Any] = []
        if around is not None:
            self.first = jex.Var(aval)
            self.before += _equations(lambda i: i + np.int32(begin), [around.carried], self.first, like=self._like)

    def advance(self) -> Iterator[Any]:
        """The equation of what a turn hands on."""
        return _equations(lambda i: i + np.int32(self._step), [self.carried], self.following, like=self._like)

    def pick(self, array: Atom, variable: Any) -> Iterator[Any]:
        """The equations of the turn's slice of a whole array."""
        return _equations(_slice, [array, self.carried], variable, like=self._like)

    def place(self, array: Any, value: Atom, variable: Any) -> Iterator[Any]:
        """The equations of a whole array with the turn's value in its place."""
        return _equations(_update, [array, value, self.carried], variable, like=self._like)


class IterationNumbers:
    """The numbers of a loop's turns, in the order of the slices that they go through.

    What the array has is how many turns come behind: a number that is read as it is would be such a slice itself.

    Args:
      opened: The loop.

    Attributes:
      array: Of every turn how many come behind.
      behind: The turn's own part of it.
      before: Equations that make the array; they stand before the loop.
    """

    def __init__(self, opened: OpenLoop):
        self._opened = opened
        self._last = last = np.int32(opened.length - 1)
        aval = jax.typeof(jnp.int32(0))
        self.behind, self.array = jex.Var(aval), jex.Var(_compat.stacked_aval(opened.length, aval))
        made = _equations(lambda: last - jax.lax.iota(np.int32, opened.length), [], self.array, like=opened.eqn)
        self.before = list(made)

    def pick(self, array: Atom, variable: Any) -> Iterator[Any]:
        """The equations of the turn's slice of an array."""
        reads = [array, self.behind]
        return _equations(lambda a, i: _slice(a, self._last - i), reads, variable, like=self._opened.eqn)

    def count(self, begin: int, variable: Any) -> Iterator[Any]:
        """The equations of a counter of the step's own, which the first turn begins with a number."""
        first = np.int32(begin)
        made = (lambda i: i + first) if self._opened.reverse else (lambda i: self._last - i + first)
        return _equations(made, [self.behind], variable, like=self._opened.eqn)


def induction_variables(
    equations: Sequence[Equation], first: Mapping[int, Atom], carried: Mapping[int, Any], following: Sequence[Atom]
) -> Mapping[int, int]:
    """The places of a loop's carry that count its turns, each with the number that it begins with."""
    found = {}
    makers = {variable: equation.eqn for equation in equations for variable in equation.eqn.outvars}
    for place, atom in first.items():
        made = makers.get(following[place]) if isinstance(following[place], jex.Var) else None
        if made is None or made.primitive.name != "add" or not isinstance(atom, jex.Literal):
            continue
        adds_one = any(isinstance(read, jex.Literal) and read.val == 1 for read in made.invars)
        is_number = carried[place].aval.dtype == np.int32
        if adds_one and is_number and carried[place] in made.invars:
            found[place] = int(atom.val)
    return found


def has_layout_choice(atom: Atom) -> bool:
    """Whether a compiler has a choice how something lies: an array of numbers with more axes than one."""
    if not isinstance(atom, jex.Var) or len(getattr(atom.aval, "shape", ())) < 2:
        return False
    return jnp.issubdtype(atom.aval.dtype, np.generic)


def row_major(array: Any, variable: Any, *, like: Any) -> Iterator[Any]:
    """The equation of an array that lies as it is indexed; named like another."""
    layout = Layout(tuple(range(len(array.aval.shape))))
    return _equations(lambda each: with_layout_constraint(each, layout), [array], variable, like=like)


def _slice(array: Any, index: Any) -> Any:
    one = (1, *array.shape[1:])
    sliced = jax.lax.dynamic_slice(array, _place(array, index), one, allow_negative_indices=False)
    return jax.lax.squeeze(sliced, (0,))


def _update(array: Any, value: Any, index: Any) -> Any:
    one = jax.lax.expand_dims(value, (0,))
    return jax.lax.dynamic_update_slice(array, one, _place(array, index), allow_negative_indices=False)


def _place(array: Any, index: Any) -> tuple[Any, ...]:
    return (index, *(np.int32(0) for _ in array.shape[1:]))


def _equations(made: Callable[..., Any], reads: Sequence[Atom], result: Any, *, like: Any) -> Iterator[Any]:
    """The equations of a function over atoms, the last of which makes a variable that exists; named like another."""
    closed = jax.make_jaxpr(made)(*(_spec(atom.aval) for atom in reads))
    jaxpr = getattr(closed, "jaxpr", closed)
    env: dict[Any, Atom] = {**dict(zip(jaxpr.invars, reads, strict=True)), jaxpr.outvars[0]: result}
    for eqn in jaxpr.eqns:
        for variable in eqn.outvars:
            env.setdefault(variable, jex.Var(variable.aval))
        yield eqn.replace(
            invars=[env[atom] if isinstance(atom, jex.Var) else atom for atom in eqn.invars],
            outvars=[env[variable] for variable in eqn.outvars],
            source_info=like.source_info,
            ctx=like.ctx,
        )


def _spec(aval: Any) -> jax.ShapeDtypeStruct:
    sharding = None if aval.sharding.mesh.empty else aval.sharding
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding, weak_type=aval.weak_type)
