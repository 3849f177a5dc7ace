"""Which views of a product a later product cannot read as they lie, and that are copied for it.

A kernel that multiplies matrices goes over its operands in steps: one for the axes that it batches over, one for those
that it sums over, one for the rest. Where the axes of one kind do not follow one another in memory (heads, which an
attention block puts between batch and sequence, and takes back into the width), the operand is turned first, once for
all that read it so.

What elementwise work makes of a product lies as that product does, which may be no order for the next one. Left alone
it is written in the right one. A value that is pinned is not: a compiler hands on the order in which it came, and
turns it afterwards, for each product that reads it. So it has to be pinned as its shape says.

Read after `layouts`. Complexity: linear in ops.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise

from jaxckpt.ir import Graph, Kind, Op
from jaxckpt.schedule.argument_derived import is_view_of
from jaxckpt.schedule.layout import Layouts, permutation_of

Steps = tuple[tuple[int, int], ...]
"""Length and stride of each axis, in elements."""
Kinds = tuple[tuple[int, ...], ...]
"""Axes that a product treats alike."""

_AXES = re.compile(r"dimension_numbers=\(\(\(([\d,]*)\),\(([\d,]*)\)\),\(\(([\d,]*)\),\(([\d,]*)\)\)\)")


def copied_views(graph: Graph) -> frozenset[int]:
    """The views whose results are written, for products that read them."""
    return frozenset(view for op in graph.ops for view in _copied_for(graph, op))


def read_in_default_layout(graph: Graph) -> frozenset[int]:
    """Results of elementwise work that lie otherwise than their shape says, and that a product reads only as it says.

    Example:
      With groups of query heads, `einsum("bqkgd,bskd->bkgqs", q, k)` lies as (b, k, s, q, g), and so does its softmax;
      `einsum("bkgqs,bskd->bqkgd", weights, v)` goes over (g, q) in one step.
    """
    layouts = Layouts(graph)
    found = set()
    for op in graph.ops:
        for read, kinds in _operands(graph, op):
            order = layouts.of(read)
            if layouts.is_elementwise_result(read) and order != tuple(range(len(order))):
                shape = graph.values[read].shape
                lying = dict(zip(order, _in_order(tuple(shape[axis] for axis in order)), strict=True))
                if not _is_read(lying, kinds) and _is_read(dict(enumerate(_in_order(shape))), kinds):
                    found.add(read)
    return frozenset(found)


def _copied_for(graph: Graph, op: Op) -> Iterator[int]:
    for read, kinds in _operands(graph, op):
        views = _views_of_product(graph, read)
        if not views:
            continue
        steps = _steps_along(graph, views)
        if steps is None or not _is_read(dict(enumerate(steps)), kinds):
            yield next((view for view in reversed(views) if graph.ops[view].primitive == "transpose"), views[0])


def _operands(graph: Graph, op: Op) -> Iterator[tuple[int, Kinds]]:
    """The operands of a product of two, each with its axes: those summed over, those of the batch, the rest."""
    axes = _AXES.search(op.detail) if op.primitive == "dot_general" and len(op.reads) == 2 else None
    if axes is None:
        return
    summed = [_numbers(axes[1]), _numbers(axes[2])]
    batched = [_numbers(axes[3]), _numbers(axes[4])]
    for read, over, each in zip(op.reads, summed, batched, strict=True):
        free = (axis for axis in range(len(graph.values[read].shape)) if axis not in over and axis not in each)
        yield read, (over, each, tuple(free))


def _is_read(steps: Mapping[int, tuple[int, int]], kinds: Kinds) -> bool:
    """Whether a product can go over an operand that lies so: each kind of its axes in one step."""
    return all(_is_one_step([steps[axis] for axis in kind]) for kind in kinds)


def _views_of_product(graph: Graph, value: int) -> list[int]:
    """The views of the same size between a product and a value, in order; none where it does not come of one."""
    views: list[int] = []
    while (made := graph.producer[value]) is not None:
        op = graph.ops[made]
        if op.kind is Kind.CONTRACTION:
            return views[::-1]
        if not is_view_of(graph, op):
            break
        views.append(made)
        value = op.reads[0]
    return []


def _steps_along(graph: Graph, views: list[int]) -> Steps | None:
    """How the result of the last view lies; None where one on the way cannot be had without a copy."""
    steps: Steps | None = _in_order(graph.values[graph.ops[views[0]].reads[0]].shape)
    for view in views:
        op = graph.ops[view]
        if steps is None:
            return None
        if op.primitive == "transpose":
            steps = tuple(steps[axis] for axis in permutation_of(op))
        else:
            steps = _reshaped(steps, graph.values[op.writes[0]].shape)
    return steps


def _in_order(shape: tuple[int, ...]) -> Steps:
    steps: list[tuple[int, int]] = []
    stride = 1
    for length in reversed(shape):
        steps.insert(0, (length, stride))
        stride *= length
    return tuple(steps)


def _reshaped(steps: Steps, shape: tuple[int, ...]) -> Steps | None:
    """The steps of another shape over the same elements; None where they are none."""
    left = [step for step in steps if step[0] > 1]
    made: list[tuple[int, int]] = []
    for length in reversed(shape):
        if length == 1:
            made.insert(0, (1, 1))
            continue
        while left and left[-1][0] < length and len(left) > 1 and _is_one_step(left[-2:]):
            (outer, _), (inner, stride) = left[-2:]
            left[-2:] = [(outer * inner, stride)]
        if not left or left[-1][0] % length:
            return None
        rest, stride = left[-1][0] // length, left[-1][1]
        made.insert(0, (length, stride))
        left[-1:] = [(rest, stride * length)] if rest > 1 else []
    return tuple(made)


def _is_one_step(axes: list[tuple[int, int]]) -> bool:
    """Whether axes follow one another in memory, the last one closest."""
    real = [axis for axis in axes if axis[0] > 1]
    return all(outer[1] == inner[0] * inner[1] for outer, inner in pairwise(real))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, filter(None, text.split(","))))
