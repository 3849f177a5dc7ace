"""Chunked computation (microbatching within a function): some tokens or examples at a time, recomputed in the backward.

A loss head computes logits for every token, with far more bytes than its arguments and results. In chunks only the
logits of one chunk are alive: a scan runs over the chunks, and `jax.checkpoint` around its body saves the arguments of
a chunk alone. Arguments that every chunk reads, and values that the function closes over, go in once; their gradient is
accumulated over the chunks, by default in float32.

Read after `naming`.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import PyTreeDef
from jax.typing import ArrayLike

from jaxckpt._errors import ChunkError
from jaxckpt.annotate import flax_modules
from jaxckpt.annotate.checkpoint import arrays_and_rest, is_array

JOINS = ("concatenate", "sum", "mean")
_NARROW = ("bfloat16", "float16")
_ACCUMULATE = ("float32", None)
PyTree: TypeAlias = Any
"""A pytree, for which jax has no type."""
_Arrays = tuple[jax.Array, ...]
_Shared = jax.Array | tuple[jax.Array, jax.Array]
"""A value that every chunk reads; a narrow one with the zeros that receive its gradient."""


def chunked(
    function: Callable[..., Any],
    *,
    chunks: int,
    axis: int | Sequence[int | None] | None = 0,
    join: PyTree = "concatenate",
    out_axis: int = 0,
    accumulate: str | None = "float32",
) -> Callable[..., Any]:
    """A function that works on its arguments in chunks, and that is recomputed, chunk by chunk, in the backward.

    Values and gradients are those of the function up to rounding, if the function treats all positions along the axis
    alike and independently: tokens of a loss head, examples of a batch. Chunks run one after the other; choose an axis
    that is not sharded over devices. To the planner, the loop is one op.

    Chunks have the axis' length over `chunks`, rounded up; the last one may be smaller. A random key is split into one
    key for each chunk if its argument has an axis; random bits then differ from those without chunks.

    Args:
      function: Takes pytrees of arrays, and returns a pytree of arrays. Leaves that are no arrays are passed unchanged.
      chunks: The number of chunks.
      axis: Of all arguments, or one for each; None for arguments that every chunk reads in full, such as weights. Every
        chunk also reads in full: keyword arguments, values that the function closes over (parameters too), and a bound
        Linen module among the arguments, such as `self.head`. Variables that a module changes or sows in a chunk are
        dropped.
      join: How the results of the chunks are combined: "concatenate" (along `out_axis`), "sum" (a sum over tokens),
        "mean" (a mean over
        tokens, by the chunks' lengths); or a pytree of these, one for each result.
      out_axis: The axis along which results are concatenated.
      accumulate: The type of accumulators of bfloat16 and float16 sums over chunks: "float32", for results and for
        gradients of arguments that every chunk reads; or None for their own type, which takes less memory.

    Returns:
      A function of the same arguments and results.

    Raises:
      ChunkError: The arguments above contradict each other; or, when called: an argument has no such axis, lengths
        along the axis differ, an NNX module changes its state, or results cannot be joined in this way.

    Example:
      >>> def loss(hidden, labels, embedding):
      ...     logits = hidden @ embedding.T
      ...     return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1).sum()
      >>> in_chunks = chunked(loss, chunks=4, axis=(0, 0, None), join="sum")
      >>> hidden, labels, embedding = jnp.ones((8, 3)), jnp.arange(8), jnp.eye(16, 3)
      >>> bool(jnp.allclose(in_chunks(hidden, labels, embedding), loss(hidden, labels, embedding)))
      True
    """
    _check_call(function, chunks, join, accumulate)
    axis = axis if axis is None or isinstance(axis, Integral) else tuple(axis)

    @functools.wraps(function)
    def in_chunks(*args: Any, **kwargs: Any) -> Any:
        modules = [leaf for leaf in jax.tree.leaves((args, kwargs)) if flax_modules.is_linen(leaf)]
        if any(module.is_initializing() for module in modules):
            return function(*args, **kwargs)
        split = _split_of(function, args, kwargs, axis=axis, chunks=chunks)
        return _ChunkedCall(split, join, out_axis, accumulate).run()

    return in_chunks


@dataclass(frozen=True, slots=True, kw_only=True)
class _Split:
    """A call over flat arrays with the axis along which each is cut; None for an array that goes in whole.

    There are `count` chunks of `size` places, and one of `rest` places where that is not 0.
    """

    call: Callable[..., Any]
    arrays: tuple[jax.Array, ...]
    axes: tuple[int | None, ...]
    length: int
    size: int
    count: int
    rest: int


class _ChunkedCall:
    """One call in chunks: the function is traced for a chunk, its loop is run, its results are joined."""

    def __init__(self, split: _Split, join: PyTree, out_axis: int, accumulate: str | None):
        self.split, self.accumulate = split, accumulate
        self.cut = tuple(i for i, axis in enumerate(split.axes) if axis is not None)
        leaves, self.tree = jax.tree.flatten(jax.eval_shape(split.call, *split.arrays))
        self.results = tuple(leaves)
        self.joins = _joins_of(join, self.tree)
        self.out_axes = tuple(_out_axis(out_axis, leaf) for leaf in leaves)
        joined = [
            leaf.ndim for leaf, join in zip(leaves, self.joins, strict=True) if join == "concatenate" and leaf.ndim
        ]
        if joined and all(not -ndim <= out_axis < ndim for ndim in joined):
            raise ChunkError(
                "jaxckpt.chunked: no result has the axis along which results are joined.",
                got=f"out_axis = {out_axis}, for results of at most {max(joined)} dimensions",
                needed=f"an axis of -{max(joined)} to {max(joined) - 1}",
                advice="out_axis=0",
            )

    def run(self) -> Any:
        """The joined results."""
        split = self.split
        pieces = [self._pieces(i) for i in self.cut]
        uncut = [array for array, axis in zip(split.arrays, split.axes, strict=True) if axis is None]
        rests = [rest for _, rest in pieces if rest is not None]
        results = self._over([main for main, _ in pieces], uncut)
        if rests:
            last, shared = self._traced(rests, uncut, size=split.rest)
            tail = jax.checkpoint(last)(rests, self._shared(shared))
            results = [self._with_rest(i, *each) for i, each in enumerate(zip(results, tail, strict=True))]
        typed = [
            each if each.dtype == result.dtype else each.astype(result.dtype)  # keys have no `astype`
            for each, result in zip(results, self.results, strict=True)
        ]
        return jax.tree.unflatten(self.tree, typed)

    def _pieces(self, index: int) -> tuple[jax.Array, jax.Array | None]:
        """An array as (chunks, ...) with its axis cut, and the rest for a last, smaller chunk or None."""
        split, array, axis = self.split, self.split.arrays[index], self.split.axes[index]
        assert axis is not None
        count, places = split.count, split.count * split.size
        if _is_key(array) and array.ndim == 0:
            keys = jax.random.split(array, count + bool(split.rest))
            return keys[:count], keys[count] if split.rest else None
        main = array if not split.rest else jax.lax.slice_in_dim(array, 0, places, axis=axis)
        rest = jax.lax.slice_in_dim(array, places, split.length, axis=axis) if split.rest else None
        shape = (*main.shape[:axis], count, split.size, *main.shape[axis + 1 :])
        return jnp.moveaxis(main.reshape(shape), axis, 0), rest

    def _over(self, stacks: Sequence[jax.Array], uncut: Sequence[jax.Array]) -> list[jax.Array]:
        """The results over the chunks of full size; a single chunk needs no loop."""
        first = [stack[0] for stack in stacks]
        chunk, shared = self._traced(first, uncut, size=self.split.size)
        read = self._shared(shared)
        if self.split.count == 1:
            return list(jax.checkpoint(chunk)(first, read))
        body = jax.checkpoint(chunk, prevent_cse=False)  # XLA merges nothing across the iterations of a loop
        summed = [i for i, join in enumerate(self.joins) if join != "concatenate"]

        def iteration(sums: list[jax.Array], pieces: list[jax.Array]) -> tuple[list[jax.Array], list[jax.Array]]:
            results = body(pieces, read)
            added = [total + results[i] for total, i in zip(sums, summed, strict=True)]
            return added, [each for i, each in enumerate(results) if i not in summed]

        zeros = [jnp.zeros(self.results[i].shape, self._sum_dtype(i)) for i in summed]
        sums, stacked = jax.lax.scan(iteration, zeros, list(stacks))
        in_sums, in_stack = iter(sums), iter(stacked)
        return [
            next(in_sums) if join != "concatenate" else self._unstacked(i, next(in_stack))
            for i, join in enumerate(self.joins)
        ]

    def _traced(
        self, pieces: Sequence[jax.Array], uncut: Sequence[jax.Array], *, size: int
    ) -> tuple[Callable[[Sequence[jax.Array], Sequence[_Shared]], list[jax.Array]], list[jax.Array]]:
        """The function for one chunk, of its pieces and of the values that every chunk reads; and these values."""

        def flat(pieces: Sequence[jax.Array], uncut: Sequence[jax.Array]) -> list[jax.Array]:
            cut, rest = iter(pieces), iter(uncut)
            return jax.tree.leaves(
                self.split.call(*(next(rest) if axis is None else next(cut) for axis in self.split.axes))
            )

        traced, captured = jax.closure_convert(flat, list(pieces), list(uncut))
        self._check_results(jax.eval_shape(traced, list(pieces), list(uncut), *captured), size)

        def chunk(pieces: Sequence[jax.Array], shared: Sequence[_Shared]) -> list[jax.Array]:
            read = [_read(*each) if isinstance(each, tuple) else each for each in shared]
            results = traced(list(pieces), read[: len(uncut)], *read[len(uncut) :])
            return [self._weighted(i, each, size / self.split.length) for i, each in enumerate(results)]

        return chunk, [*uncut, *captured]

    def _weighted(self, index: int, result: jax.Array, share: float) -> jax.Array:
        """A chunk's result as a term of the sum over chunks."""
        join = self.joins[index]
        if join == "concatenate":
            return result
        result = result.astype(self._sum_dtype(index))
        return result * jnp.asarray(share, result.dtype) if join == "mean" else result

    def _sum_dtype(self, index: int) -> np.dtype:
        dtype = self.results[index].dtype
        return jnp.dtype(self.accumulate) if self.accumulate and dtype.name in _NARROW else dtype

    def _shared(self, values: Sequence[jax.Array]) -> list[_Shared]:
        """The values that every chunk reads; narrow ones with the float32 zeros that receive their gradient."""
        if self.accumulate is None:
            return list(values)
        return [(jax.lax.stop_gradient(each), _slope(each)) if each.dtype.name in _NARROW else each for each in values]

    def _unstacked(self, index: int, stacked: jax.Array) -> jax.Array:
        """(chunks, ...) with the chunks one after the other along the result's axis."""
        axis = self.out_axes[index]
        moved = jnp.moveaxis(stacked, 0, axis)
        return moved.reshape(*moved.shape[:axis], -1, *moved.shape[axis + 2 :])

    def _with_rest(self, index: int, result: jax.Array, rest: jax.Array) -> jax.Array:
        if self.joins[index] != "concatenate":
            return result + rest
        return jnp.concatenate([result, rest], axis=self.out_axes[index])

    def _check_results(self, of_chunk: Sequence[jax.ShapeDtypeStruct], size: int) -> None:
        """Requires that the joined results of chunks have the shapes of the function's results."""
        shapes = jax.tree.unflatten(self.tree, self.results)
        paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(shapes)]
        for index, (part, result) in enumerate(zip(of_chunk, self.results, strict=True)):
            expected = list(result.shape)
            if self.joins[index] == "concatenate":
                if result.ndim == 0 or result.shape[self.out_axes[index]] != self.split.length:
                    raise _unjoined(paths[index], result, "concatenate", self.split.length)
                expected[self.out_axes[index]] = size
            is_inexact = jnp.issubdtype(result.dtype, jnp.inexact)
            cannot = {"concatenate": False, "sum": result.dtype == bool, "mean": not is_inexact}[self.joins[index]]
            if list(part.shape) != expected or cannot:
                raise _unjoined(paths[index], result, self.joins[index], self.split.length, part=part)


def _split_of(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    axis: int | tuple[int | None, ...] | None,
    chunks: int,
) -> _Split:
    """A call with its arrays apart from all else, and the axis of each."""
    axes = axis if isinstance(axis, tuple) else (axis,) * len(args)
    _check_axes(function, axes, args)
    pairs = jax.tree_util.tree_flatten_with_path((args, kwargs))[0]
    leaves, static = arrays_and_rest((args, kwargs))
    arrays = list(map(jnp.asarray, leaves))
    paths = [path for path, leaf in pairs if is_array(leaf)]
    axis_of = [_axis_of_leaf(path, axes) for path in paths]
    length = _length(function, list(zip(map(_path, paths), arrays, axis_of, strict=True)))
    modules = [flax_modules.opened(leaf) for _, leaf in pairs if flax_modules.is_linen(leaf)]
    variables, tree = jax.tree.flatten([held for held, _ in modules])
    has_nnx = flax_modules.has_nnx((args, kwargs))

    def call(*flat: ArrayLike) -> Any:
        held = jax.tree.unflatten(tree, flat[len(arrays) :])
        bound = (bind(own) for (_, bind), own in zip(modules, held, strict=True))
        filled = static.filled(flat[: len(arrays)])
        args, kwargs = jax.tree.map(lambda leaf: next(bound) if flax_modules.is_linen(leaf) else leaf, filled)
        before = jax.tree.leaves((args, kwargs)) if has_nnx else []
        results = function(*args, **kwargs)
        after = jax.tree.leaves((args, kwargs)) if has_nnx else []
        if len(after) != len(before) or any(new is not old for new, old in zip(after, before, strict=True)):
            raise _changed_module(function)
        return results

    size = -(-length // min(chunks, length))
    return _Split(
        call=call,
        arrays=(*arrays, *variables),
        axes=(*map(_positive, axis_of, arrays), *(None for _ in variables)),
        length=length,
        size=size,
        count=length // size,
        rest=length % size,
    )


def _changed_module(function: Callable[..., Any]) -> ChunkError:
    return ChunkError(
        f"jaxckpt.chunked: {_called(function)} changes an NNX module, and changes inside of chunks are lost.",
        got="a module with other arrays after the call: the state of Dropout or BatchNorm",
        needed="a function that returns all that it computes",
        advice="random keys as an argument, one for each row; statistics among the results; or Linen modules",
    )


def _check_axes(function: Callable[..., Any], axes: tuple[int | None, ...], args: tuple[Any, ...]) -> None:
    if len(axes) != len(args):
        raise ChunkError(
            f"jaxckpt.chunked: {_called(function)} needs one axis for all arguments, or one for each.",
            got=f"axis = {axes!r} for {len(args)} positional arguments",
            needed="one axis for all, or one for each",
            advice=f"axis={(*axes, *(None,) * len(args))[: len(args)]!r}",
        )


def _positive(axis: int | None, array: jax.Array) -> int | None:
    """The axis counted from the first dimension."""
    return None if axis is None else axis % max(1, array.ndim)


def _axis_of_leaf(path: tuple[Any, ...], axes: tuple[int | None, ...]) -> int | None:
    """The axis of an argument's leaf; a path begins with 0 for positions, 1 for keywords."""
    of_keywords, position = path[0].idx, getattr(path[1], "idx", None)
    return None if of_keywords or position is None else axes[position]


def _length(function: Callable[..., Any], named: Sequence[tuple[str, jax.Array, int | None]]) -> int:
    """The length along the axis, the same for all arrays; a random key without an axis is split into any number."""
    cut = [(path, array, axis) for path, array, axis in named if axis is not None]
    known = {
        path: array.shape[axis] if -array.ndim <= axis < array.ndim else None
        for path, array, axis in cut
        if array.ndim or not _is_key(array)
    }
    lengths = set(known.values())
    if len(lengths) == 1 and (length := lengths.pop()):  # neither None nor 0
        return length
    raise _no_common_length(function, cut, known)


def _no_common_length(
    function: Callable[..., Any], cut: Sequence[tuple[str, jax.Array, int]], known: Mapping[str, int | None]
) -> ChunkError:
    shapes = {path: f"{path}: {array.dtype}{list(array.shape)}, axis {axis}" for path, array, axis in cut}
    without = [path for path, length in known.items() if length is None]
    return ChunkError(
        f"jaxckpt.chunked: {_called(function)} cannot be cut into chunks.",
        got="; ".join(shapes[path] for path in (without or known)) or "no array with an axis",
        needed="arrays that have the axis, all of one length along it that is not 0; None for arguments that every"
        " chunk reads in full",
        advice=f"axis=None for {' and '.join(without)}" if without else "axis=(0, 0, None), one for each argument",
        arguments=tuple(without or known),
    )


def _joins_of(join: PyTree, tree: PyTreeDef) -> tuple[str, ...]:
    """The word for each result."""
    try:
        prefixed = jax.tree.broadcast(join, jax.tree.unflatten(tree, range(tree.num_leaves)))
    except ValueError as error:
        raise ChunkError(
            "jaxckpt.chunked: `join` is no tree of the results.",
            got=f"join = {join!r} for results {tree}",
            needed="one word for all results, or a pytree of words as the results are one",
            advice='join="sum"',
        ) from error
    return tuple(jax.tree.leaves(prefixed))


def _out_axis(axis: int, result: jax.ShapeDtypeStruct) -> int:
    return axis % result.ndim if result.ndim and -result.ndim <= axis < result.ndim else 0


def _unjoined(
    path: str,
    result: jax.ShapeDtypeStruct,
    join: str,
    length: int,
    part: jax.ShapeDtypeStruct | None = None,
) -> ChunkError:
    shape = f"{result.dtype}{list(result.shape)}"
    of_chunk = f", of one chunk {part.dtype}{list(part.shape)}" if part is not None else ""
    needed = f"an array with {length} places along `out_axis`" if join == "concatenate" else "numbers of one shape"
    return ChunkError(
        f'jaxckpt.chunked: the result{f" {path}" if path else ""} cannot be joined by "{join}".',
        got=f"{shape}{of_chunk}",
        needed=f"{needed} for every chunk",
        advice='join="sum" for a sum over the axis, "mean" for a mean; out_axis= for the position of the axis in the'
        " results"
        if join == "concatenate"
        else 'join="concatenate" for a result at each position of the axis',
        result=path,
    )


def _check_call(function: object, chunks: object, join: PyTree, accumulate: object) -> None:
    for got, needed, advice in _call_problems(function, chunks, join, accumulate):
        headline = f"jaxckpt.chunked({_called(function)}) cannot be done."
        raise ChunkError(headline, got=got, needed=needed, advice=advice)


def _call_problems(
    function: object, chunks: object, join: PyTree, accumulate: object
) -> Iterator[tuple[str, str, str]]:
    if not callable(function):
        yield repr(function), "a function", "jaxckpt.chunked(loss, chunks=8, join='sum')"
    if not isinstance(chunks, Integral) or isinstance(chunks, bool) or chunks < 1:
        yield f"chunks = {chunks!r}", "a number of chunks, 1 or more", "chunks=8"
    unknown = [word for word in jax.tree.leaves(join) if word not in JOINS]
    if unknown or not jax.tree.leaves(join):
        yield f"join = {join!r}", f"one of {', '.join(map(repr, JOINS))}, or a pytree of them", 'join="sum"'
    if accumulate not in _ACCUMULATE:
        yield f"accumulate = {accumulate!r}", '"float32" or None', 'accumulate="float32"'


@jax.custom_jvp
def _slope(value: jax.Array) -> jax.Array:
    """Zeros in float32 with the derivative of the value: gradients accumulate there without a float32 copy of it."""
    return jnp.zeros(value.shape, jnp.float32)


@_slope.defjvp
def _slope_jvp(primals: _Arrays, tangents: _Arrays) -> tuple[jax.Array, jax.Array]:
    return _slope(*primals), tangents[0].astype(jnp.float32)


@jax.custom_jvp
def _read(value: jax.Array, slope: jax.Array) -> jax.Array:  # noqa: ARG001 its derivative alone is read
    """The value, whose derivative is the slope's."""
    return value


@_read.defjvp
def _read_jvp(primals: _Arrays, tangents: _Arrays) -> tuple[jax.Array, jax.Array]:
    return _read(*primals), tangents[1].astype(primals[0].dtype)


def _is_key(array: jax.Array) -> bool:
    return jnp.issubdtype(array.dtype, jax.dtypes.prng_key)


def _path(path: tuple[Any, ...]) -> str:
    """The argument that a leaf belongs to, as text."""
    return f"argument {jax.tree_util.keystr(path[1:])}"


def _called(function: object) -> str:
    return getattr(function, "__name__", type(function).__name__)
