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

The stacks of a loop may begin late (`OpenLoop.delays_stacks`). A scan's own stacks begin as zeros, which depend on
nothing: XLA's scheduler for GPUs may write them long before the loop, those of all layers at once, and then holds them
until then. In the backward of six layers with a scan each they took 288 of 945 MiB. Arrays that begin as copies of a
value that is computed just before the loop cannot be written before that value.

The carry of a part, or a tile, has a row-major layout: a compiler gives each loop a layout of its own, and might
transpose what layers pass on, which then fuses into other kernels than in the unsplit loop.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import jax
import jax.core
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
from jax.experimental.layout import Layout, with_layout_constraint

from jaxckpt import _compat
from jaxckpt.outline.interfaces import Carry, FilledArray, LoopInterface, LoopTree, zeros_like_aval
from jaxckpt.program.flat_program import Atom, Equation, OpenLoop, traced_eqns


def hold_row_major(loops: Sequence[LoopInterface], tree: LoopTree, chosen: Iterable[int]) -> None:
    """Lets iterations of some loops hand on arrays in row-major layout.

    A compiler can choose the layout of an array of numbers with two axes or more.
    """
    for loop in chosen:
        interface, like = loops[loop], tree.loops[loop].eqn
        for place, carry in enumerate(interface.carries):
            value = carry.following
            shape = getattr(value.aval, "shape", ())
            if isinstance(value, jex.Var) and len(shape) > 1 and jnp.issubdtype(value.aval.dtype, np.generic):
                following = jex.Var(value.aval)
                constrained = functools.partial(with_layout_constraint, layouts=Layout(tuple(range(len(shape)))))
                interface.after += _equations(constrained, [value], following, like=like)
                interface.carries[place] = replace(carry, following=following)


def carry_filled_arrays(loops: Sequence[LoopInterface], tree: LoopTree, filled: Mapping[jex.Var, FilledArray]) -> None:
    """Lets loops fill arrays one after the other: the first one gets zeros, and each hands its array on to the next."""
    for stack, array in filled.items():
        eqns, init = zeros_like_aval(stack.aval, array.like)
        loops[tree.iterating(array.loops[0])[0]].before += eqns
        for loop, value in zip(array.loops, array.values, strict=True):
            final = stack if loop == array.loops[-1] else jex.Var(stack.aval)
            before, behind = init, final
            for each in tree.iterating(loop):  # the first iteration of a tile gets the array from the loop over tiles
                carry = Carry(before, jex.Var(stack.aval), jex.Var(stack.aval), behind)
                loops[each].carries.append(carry)
                before, behind = carry.current, carry.following
            loops[loop].updates.append((before, value, behind))
            init = final


def delay_stacks(loops: Sequence[LoopInterface], tree: LoopTree, equations: Sequence[Equation]) -> None:
    """Lets loops fill arrays in their carries that begin as copies of one element of the last operand that is computed.

    Every element is overwritten. A loop that no computed array of real numbers enters keeps its stacks.
    """
    delayed = [(interface, loop) for interface, loop in zip(loops, tree.loops, strict=True) if loop.delays_stacks]
    computed_at = _computed_at(equations) if delayed else {}
    for interface, opened in delayed:
        operands = (*interface.slices.values(), *(carry.init for carry in interface.carries))
        reals = (v for v in operands if isinstance(v, jex.Var) and jnp.issubdtype(v.aval.dtype, jnp.floating))
        last = max((v for v in reals if v in computed_at and v.aval.size), key=computed_at.__getitem__, default=None)
        if last is not None:
            _fill_copies_of(last, interface, opened)


def _fill_copies_of(operand: jex.Var, interface: LoopInterface, opened: OpenLoop) -> None:
    kept = []
    for value, stack in interface.stacks:
        if not jnp.issubdtype(stack.aval.dtype, np.generic):  # keys are no numbers
            kept.append((value, stack))
            continue
        carry = Carry(jex.Var(stack.aval), jex.Var(stack.aval), jex.Var(stack.aval), stack)
        copies = functools.partial(_copies_of_first, like=jax.ShapeDtypeStruct(stack.aval.shape, stack.aval.dtype))
        interface.before += _equations(copies, [operand], carry.init, like=opened.eqn)
        interface.carries.append(carry)
        interface.updates.append((carry.current, value, carry.following))
    interface.stacks = kept


def _computed_at(equations: Sequence[Equation]) -> Mapping[jex.Var, int]:
    """For each variable the position of the equation that computes it; constants are not computed.

    What passes a barrier is computed in front of it.
    """
    computed_at: dict[jex.Var, int] = {}
    constants: set[Atom] = set()
    for position, equation in enumerate(equations):
        eqn = equation.eqn
        if all(isinstance(atom, jex.Literal) or atom in constants for atom in eqn.invars):
            constants.update(eqn.outvars)
        elif eqn.primitive.name == "optimization_barrier":
            passed = zip(eqn.invars, eqn.outvars, strict=True)
            known = ((before, after) for before, after in passed if isinstance(before, jex.Var))
            computed_at.update({after: computed_at[before] for before, after in known if before in computed_at})
        else:
            computed_at.update(dict.fromkeys(eqn.outvars, position))
    return computed_at


def _copies_of_first(array: jax.Array, like: jax.ShapeDtypeStruct) -> jax.Array:
    first = jax.lax.slice(array, (0,) * array.ndim, (1,) * array.ndim).reshape(())
    return jnp.broadcast_to(first.astype(like.dtype), like.shape)


def number_iterations(interface: LoopInterface, opened: OpenLoop, equations: Sequence[Equation]) -> None:
    """Lets iterations read their numbers from an array, for their slices and for induction variables, if any.

    The array has how many iterations come behind: a number that is read as it is would be such a slice itself.
    """
    counting = induction_variables(equations, interface.carries)
    if not interface.picked and not counting:
        return
    last = np.int32(opened.length - 1)
    aval = jax.typeof(np.int32(0))
    behind, array = jex.Var(aval), jex.Var(_compat.stacked_aval(opened.length, aval))
    interface.before += _equations(lambda: last - jax.lax.iota(np.int32, opened.length), [], array, like=opened.eqn)
    for place, begin in counting.items():
        first, carry = np.int32(begin), interface.carries[place]
        count = (lambda i, n=first: i + n) if opened.reverse else (lambda i, n=first: last - i + n)
        interface.start += _equations(count, [behind], carry.current, like=opened.eqn)
        interface.carries[place] = replace(carry, current=jex.Var(aval))
    for variable, picked in interface.picked.items():
        interface.start += _equations(lambda a, i: _slice(a, last - i), [picked, behind], variable, like=opened.eqn)
    interface.slices[behind] = array
    interface.picked = {}


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


def add_counters(loops: Sequence[LoopInterface], tree: LoopTree) -> None:
    """Lets loops slice and update arrays at a counter in their carry; loops over tiles count for those in the tiles."""
    counters: dict[int, jex.Var] = {}
    for loop, interface in enumerate(loops):
        around = None
        for each in tree.iterating(loop) if interface.picked or interface.updates else ():
            if each not in counters:
                stride = next((i.length for i in tree.loops if i.is_inner_tile and i.parent == each), 1)
                counters[each] = _counter(loops[each], tree.loops[each], stride, around)
            around = counters[each]


def _counter(interface: LoopInterface, opened: OpenLoop, stride: int, around: jex.Var | None) -> jex.Var:
    """Adds a counter of slices, `stride` in an iteration; in a tile it goes on from that `around`."""
    aval, like = jax.typeof(np.int32(0)), opened.eqn
    begin = np.int32((opened.offset or 0) + ((opened.length - 1) * stride if opened.reverse else 0))
    step = np.int32(-stride if opened.reverse else stride)
    init: Atom = jex.Literal(begin, aval) if around is None else jex.Var(aval)
    carry = Carry(init, jex.Var(aval), jex.Var(aval), jex.Var(aval))
    if around is not None:
        interface.before += _equations(lambda i: i + begin, [around], init, like=like)
    for variable, array in interface.picked.items():
        interface.start += _equations(_slice, [array, carry.current], variable, like=like)
    updates: list[jex.JaxprEqn] = []
    for array, value, result in interface.updates:
        updates += _equations(_update, [array, value, carry.current], result, like=like)
    advance = _equations(lambda i: i + step, [carry.current], carry.following, like=like)
    interface.after = [*updates, *interface.after, *advance]
    interface.carries.append(carry)
    interface.picked, interface.updates = {}, []
    return carry.current


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
