"""Iterations that read and write their part of an array by an index: by a counter in the carry, or a number of each.

A scan's own slices and stacks are as long as the scan. To cut an array for each part of a split loop would copy the
array, and so would joining what the parts have stacked. So the array is a constant of the scan, or part of its carry,
and each iteration slices or updates the array at a counter. Compilers make the same of a scan's slices and stacks.
The iterations of a tile count on from where the tile begins, which the loop over tiles counts.

The iterations of a loop may be numbered instead (`OpenLoop.reads_iteration_number`): each reads its number from an
array of all. XLA copies slices whose place is a function of the trip counter beside the kernels of a GPU, and then
orders all kernels of the body anew with an eye on time alone. Products whose results are added up over the iterations,
the gradients of weights, come last then, and their operands stay until then: the body of a gradient that is accumulated
may take twice the memory (`benchmarks.accumulation`).

The carry of a part, or a tile, has a row-major layout: a compiler gives each loop a layout of its own, and might
transpose what layers pass on, which then fuses into other kernels than in the unsplit loop.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import jax
import jax.core
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
from jax.experimental.layout import Layout, with_layout_constraint

from jaxckpt import _compat
from jaxckpt.outline.interfaces import ArrayUpdate, Carry, FilledArray, LoopInterface, LoopTree, zeros_like_aval
from jaxckpt.program.flat_program import Atom, Equation, OpenLoop, traced_eqns


def with_row_major_carry(interface: LoopInterface, like: jex.JaxprEqn) -> LoopInterface:
    """A loop whose iterations hand on arrays in row-major layout; its equations have the source of another one.

    A compiler can choose the layout of an array of numbers with two axes or more.
    """
    carries, eqns = [], []
    for carry in interface.carries:
        following = carry.following
        shape = getattr(following.aval, "shape", ())
        if isinstance(following, jex.Var) and len(shape) > 1 and jnp.issubdtype(following.aval.dtype, np.generic):
            following = jex.Var(following.aval)
            layout = Layout(tuple(range(len(shape))))
            constrained = functools.partial(with_layout_constraint, layouts=layout)
            eqns += _equations(constrained, [carry.following], following, like=like)
        carries.append(replace(carry, following=following))
    return replace(interface, carries=tuple(carries), after=(*interface.after, *eqns))


def with_filled_arrays(
    loops: Sequence[LoopInterface], tree: LoopTree, filled: Mapping[jex.Var, FilledArray]
) -> tuple[LoopInterface, ...]:
    """Loops that fill arrays one after the other: the first one gets zeros, and each hands its array on to the next."""
    found = list(loops)
    for stack, array in filled.items():
        eqns, init = zeros_like_aval(stack.aval, array.like)
        first = tree.iterating(array.loops[0])[0]
        found[first] = replace(found[first], before=(*found[first].before, *eqns))
        for loop, value in zip(array.loops, array.values, strict=True):
            final = stack if loop == array.loops[-1] else jex.Var(stack.aval)
            _fill(found, tree.iterating(loop), value, init=init, final=final)
            init = final
    return tuple(found)


def _fill(found: list[LoopInterface], iterating: Sequence[int], value: Atom, *, init: Atom, final: jex.Var) -> None:
    """A loop's part of an array; the first iteration of a tile gets the array from the loop over tiles."""
    for loop in iterating:
        carry = Carry(init, jex.Var(final.aval), jex.Var(final.aval), final)
        found[loop] = replace(found[loop], carries=(*found[loop].carries, carry))
        init, final = carry.current, carry.following
    innermost = iterating[-1]
    update = ArrayUpdate(init, value, final)
    found[innermost] = replace(found[innermost], updates=(*found[innermost].updates, update))


def with_numbers(interface: LoopInterface, opened: OpenLoop, equations: Sequence[Equation]) -> LoopInterface:
    """A loop whose iterations read their numbers from an array, for their slices and for induction variables, if any.

    The array has how many iterations come behind: a number that is read as it is would be such a slice itself.
    """
    counting = induction_variables(equations, interface.carries)
    if not interface.picked and not counting:
        return interface
    last = np.int32(opened.length - 1)
    aval = jax.typeof(jnp.int32(0))
    behind, array = jex.Var(aval), jex.Var(_compat.stacked_aval(opened.length, aval))
    before = _equations(lambda: last - jax.lax.iota(np.int32, opened.length), [], array, like=opened.eqn)
    start: list[jex.JaxprEqn] = []
    carries = list(interface.carries)
    for place, begin in counting.items():
        first = np.int32(begin)
        count = (lambda i, n=first: i + n) if opened.reverse else (lambda i, n=first: last - i + n)
        start += _equations(count, [behind], carries[place].current, like=opened.eqn)
        carries[place] = replace(carries[place], current=jex.Var(aval))
    for variable, picked in interface.picked.items():
        start += _equations(lambda a, i: _slice(a, last - i), [picked, behind], variable, like=opened.eqn)
    return replace(
        interface,
        carries=tuple(carries),
        slices={**interface.slices, behind: array},
        picked={},
        before=(*interface.before, *before),
        start=tuple(start),
    )


def induction_variables(equations: Sequence[Equation], carries: Sequence[Carry]) -> Mapping[int, int]:
    """The places of a carry that an iteration increases by one, each with its first number."""
    producer = {variable: equation.eqn for equation in equations for variable in equation.eqn.outvars}
    return {
        place: int(carry.init.val)
        for place, carry in enumerate(carries)
        if isinstance(carry.init, jex.Literal)
        and isinstance(carry.following, jex.Var)
        and _adds_one(producer.get(carry.following), carry.current)
    }


def _adds_one(eqn: jex.JaxprEqn | None, variable: jex.Var) -> bool:
    """True if an equation adds one to a 32 bit number."""
    if eqn is None or eqn.primitive.name != "add" or variable.aval.dtype != np.int32:
        return False
    return variable in eqn.invars and any(isinstance(read, jex.Literal) and read.val == 1 for read in eqn.invars)


def with_counters(loops: Sequence[LoopInterface], tree: LoopTree) -> tuple[LoopInterface, ...]:
    """Loops that slice and update arrays at a counter in their carry; loops over tiles count for those in the tiles."""
    found = list(loops)
    counters: dict[int, jex.Var] = {}
    for loop, interface in enumerate(loops):
        around = None
        for each in tree.iterating(loop) if interface.picked or interface.updates else ():
            if each not in counters:
                stride = next((i.length for i in tree.loops if i.is_inner_tile and i.parent == each), 1)
                found[each], counters[each] = _with_counter(loops[each], tree.loops[each], stride, around)
            around = counters[each]
    return tuple(found)


def _with_counter(
    interface: LoopInterface, opened: OpenLoop, stride: int, around: jex.Var | None
) -> tuple[LoopInterface, jex.Var]:
    """A loop with a counter of slices, `stride` in an iteration; in a tile it goes on from that `around`."""
    aval, like = jax.typeof(jnp.int32(0)), opened.eqn
    begin = np.int32((opened.offset or 0) + ((opened.length - 1) * stride if opened.reverse else 0))
    step = np.int32(-stride if opened.reverse else stride)
    init: Atom = jex.Literal(begin, aval) if around is None else jex.Var(aval)
    carry = Carry(init, jex.Var(aval), jex.Var(aval), jex.Var(aval))
    before = () if around is None else _equations(lambda i: i + begin, [around], init, like=like)
    start, updates = list(interface.start), []
    for variable, array in interface.picked.items():
        start += _equations(_slice, [array, carry.current], variable, like=like)
    for update in interface.updates:
        updates += _equations(_update, [update.array, update.value, carry.current], update.result, like=like)
    advance = _equations(lambda i: i + step, [carry.current], carry.following, like=like)
    counted = replace(
        interface,
        carries=(*interface.carries, carry),
        picked={},
        updates=(),
        before=(*interface.before, *before),
        start=tuple(start),
        after=(*updates, *interface.after, *advance),
    )
    return counted, carry.current


def _slice(array: jax.Array, index: jax.Array) -> jax.Array:
    one = (1, *array.shape[1:])
    sliced = jax.lax.dynamic_slice(array, _place(array, index), one, allow_negative_indices=False)
    return jax.lax.squeeze(sliced, (0,))


def _update(array: jax.Array, value: jax.Array, index: jax.Array) -> jax.Array:
    one = jax.lax.expand_dims(value, (0,))
    return jax.lax.dynamic_update_slice(array, one, _place(array, index), allow_negative_indices=False)


def _place(array: jax.Array, index: jax.Array) -> tuple[jax.Array | np.int32, ...]:
    return (index, *(np.int32(0) for _ in array.shape[1:]))


def _equations(
    function: Callable[..., jax.Array], reads: Sequence[Atom], result: Atom, *, like: jex.JaxprEqn
) -> Iterator[jex.JaxprEqn]:
    """The equations of a function over atoms, the last of which writes `result`, with the source of another one."""
    return (eqn.replace(source_info=like.source_info, ctx=like.ctx) for eqn in traced_eqns(function, reads, result))
