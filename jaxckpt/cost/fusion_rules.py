"""The rules of `fusion` that depend on the graph alone, each a set of ops.

What is in memory under a plan also depends on who reads what: `fusion_analysis` finds that from the sets. Read after
`jaxckpt.schedule.layout`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import nlargest
from itertools import accumulate
from math import inf, prod
from operator import mul

from jaxckpt.cost.merged_products import merged_products
from jaxckpt.cost.padding import is_batched, number_of_parts, parts_bytes, sums_padded_parts
from jaxckpt.cost.rates import Rates, is_threefry_draw
from jaxckpt.ir import Graph, Kind, Op, Phase, Trait
from jaxckpt.ir.regions import CARRY, SLICE
from jaxckpt.schedule.argument_derived import argument_derived_values, is_broadcast_over, is_view_of
from jaxckpt.schedule.initialisers import scatters_fused_with_add
from jaxckpt.schedule.layout import (
    Layouts,
    copied_for_each_product,
    copied_views,
    exchanged_products,
    has_merged_axes,
    has_several_batch_axes,
    is_matrix_product,
    keeps_axis,
    read_from_transforms,
)

_NEEDS_MEMORY = frozenset({Kind.CONTRACTION, Kind.OPAQUE, Kind.BARRIER})
_WRITES_MEMORY = frozenset({Kind.CONTRACTION, Kind.REDUCTION, Kind.SCATTER, Kind.OPAQUE, Kind.BARRIER})
_LOOPS = frozenset({Kind.ELEMENTWISE, Kind.VIEW, Kind.REDUCTION})
_EXPENSIVE = {
    **dict.fromkeys(("tanh", "pow", "atan2", "atan", "erf_inv"), 260.0),
    **dict.fromkeys(("sin", "cos", "erfc", "lgamma", "digamma"), 700.0),
}
"""Elementwise ops of so many FLOPs that compilers do not run them twice to save a write, but for matrix products and
where arrays are small. FLOPs an element: with these XLA computes `tanh` twice for 2**18 elements and two kernels, and
writes it for 2**20, or for three kernels; `sin` twice for 2**16, and not for 2**18. It computes an exponential, a
logarithm and a division as often as they are read, whatever their size (jax 0.10.2 and 0.12.0.1)."""
_LAUNCH_S = 1e-6
"""Seconds that XLA counts for the start of a kernel when it decides what to fuse (`kKernelLaunchOverhead`)."""
_POLYNOMIALS = frozenset({"erfc", "erf_inv", "lgamma", "digamma"})
"""Ops that become a polynomial in float32; their operand is used at many places of it."""
_EPILOGUE = frozenset(
    {
        "add", "add_any", "sub", "mul", "div", "max", "min", "neg", "abs", "exp", "tanh", "log", "sin", "cos", "sqrt",
        "rsqrt", "logistic", "select_n", "convert_element_type", "reshape", "squeeze", "expand_dims", "custom_jvp_call",
        "eq", "ne", "lt", "le", "gt", "ge",
    }
)  # fmt: skip
"""Ops that a matrix product applies to its result before it is written."""
_MOST_GROWTH_BYTES = 1024
"""An op whose result is larger than its operands by more than this stays out of the product's kernel, as in XLA."""
_TILES_ELEMENTS = 128 * 128 * 128
"""A product of fewer elements than this, 128 tiles of a usual size, goes on with nothing. In the body of a loop, where
it counts as often as the loop iterates, one without a batch goes on with a bias or the sum of gradients."""
_JOINED_LENGTH = 64
"""The kernel of a product reads a concatenation in tiles: each part has a multiple of so many elements (XLA's
`kMinConcatFragmentSize`)."""
_ROWS_LENGTH = 16
"""It reads rows in tiles too. With three axes of rows, of which the last has 16 elements, XLA joins (jax 0.12.0.1), and
with 20 it does not."""
_READS_PART = frozenset({"dynamic_slice", "slice", "split", "unstack", "squeeze", SLICE})
_NOT_OF_ROWS = frozenset({"dynamic_slice", SLICE, "concatenate"})
"""Ops that a kernel that holds rows does not compute: it is made of tiles."""
_KEEPS_VALUE = frozenset({"max", "min"})
"""Ops that may stand between a row's reduction and the row: a maximum begins at minus infinity."""
_LONGEST_ROW = 2**16
"""Elements of a row that one group of threads can hold. 2**13, 2**16 and 2**19 predict the same (`python -m
benchmarks.constants`)."""
_MOST_SUMS = 16
"""Sums that are looked at before a value, in `_statistics`: a simulation of 48,000 ops has 6,000, each behind all."""
_SHORT_ROW = 64
"""Rows up to this length are held through two reductions however few they are: XLA of jax 0.12.0.1 holds 2**15 rows of
64, and neither 2**16 rows of 128 nor 49,152 of 256."""
_FEW_ROWS = 2**16
"""Longer rows are held where there are more than these. With 2**18 the median error of seconds is 4.9%, with 2**14 and
2**16 it is 0.6% (`python -m benchmarks.constants`). The tests of `fusion` have shapes on either side of this and of
`_SHORT_ROW`."""

Ops = frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRules:
    """Rule 5, by op: row reductions, and which values they lead to.

    Attributes:
      nested_reductions: Reductions over complete rows that lie together: a kernel holds the rows through several.
      row_reductions: Reductions over complete rows that lie together, used by what was reduced; and `statistics`.
      stored_exponentials: Exponentials of a softmax that a backward pass finds in memory.
      separate_reductions: Reductions of stored exponentials, which are passes of their own.
      statistics: Sums of layer norms, the mean and the variance, and of their gradients.
      column_reductions: Reductions over other axes, which no kernel that holds rows computes.
      cuts: Slices that take a part of each row.
      foreign: Ops that no kernel that holds rows computes (`row_kernels`).
      folded: Reductions that are fused into the kernels that use them, in the step as it stands.
      folded_if_unread: Those of the forward pass that are fused where no backward reads their results.
      folded_in_backward: Those that are fused where they are recomputed and only a backward pass reads their results.
      values: Values that then are only inside kernels that hold rows: saving one costs a pass over its rows.
    """

    nested_reductions: Ops
    row_reductions: Ops
    stored_exponentials: Ops
    separate_reductions: Ops
    statistics: Ops
    column_reductions: Ops
    cuts: Ops
    foreign: Ops
    folded: Ops = frozenset()
    folded_if_unread: Ops = frozenset()
    folded_in_backward: Ops = frozenset()
    values: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductRules:
    """Rules 1 and 8, by op: which ops the kernel of a matrix product computes besides.

    Attributes:
      dots: Products that apply elementwise ops to what they load.
      library: Rule 9: products that a library computes unless their epilogue reads and writes more bytes than this.
      plain: Rule 9: products that a library computes where nothing is fused with them.
      library_epilogues: Ops that a library applies to its result by itself: a scale, an addition, relu, and
        the exchange of rows and columns.
      loaded_operands: For each op that they apply there the position of its operand that is no broadcast.
      only_for_products: Elementwise ops whose result nothing but products read.
      joined: For each product that takes in concatenations, whose parts its kernel reads, the concatenations.
      with_epilogues: Products that may go on with their result before they write it; False for those of few tiles,
        which apply only what a library does.
      epilogues: Ops that they may apply to it.
      several_batch_axes: Products whose epilogue ends before an op of `repeating`.
      repeating: Elementwise ops with an operand that is repeated over the result: a constant, a bias, a mask.
      views: Views that show their operand in the order of its elements, such as a broadcast of a bias.
      merged_axes: Products that are computed with fewer axes than their results have, and epilogues of those: no loop
        writes over an array of another shape.
      given: Barriers of the step's own and carries of loops, whose results are there like arguments.
    """

    dots: Ops
    library: Mapping[int, float]
    plain: Ops
    library_epilogues: Ops
    loaded_operands: Mapping[int, int]
    only_for_products: Ops
    joined: Mapping[int, Ops]
    with_epilogues: Mapping[int, bool]
    epilogues: Ops
    several_batch_axes: Ops
    repeating: Ops
    views: Ops
    merged_axes: Ops
    given: Ops

    @property
    def concatenations(self) -> Ops:
        """Those of `joined`."""
        return frozenset[int]().union(*self.joined.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class StoringCosts:
    """Rule 3: bytes that memory could move instead.

    Attributes:
      expensive: For each forward op of many instructions an element those while it is computed; a polynomial has
        `needed_operands`.
      launch_bytes: Those while a kernel starts.
      parts_bytes: For each product that is summed in parts (`padding`) the bytes of all parts.
    """

    expensive: Mapping[int, float]
    launch_bytes: float
    parts_bytes: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class FusionRules:
    """The rules that hold for any plan of a graph.

    Attributes:
      needed_operands: Rule 1: for each op the positions of operands that must be in memory.
      transposed_stacks: Values that are transposed, all iterations at once, before a later loop reads their stack.
      writes_memory: Rules 1, 4, 6: contractions, reductions, scatters, opaque ops, ops with effects or own kernels.
      same_size_views: Rule 1: views of one array of the same size, which are in memory where that is.
      products: Rules 1 and 8: what the kernels of matrix products compute besides.
      after_forward: Rule 5: ops of the backward pass and of the update.
      draws: Rule 1: draws of random bits, by Threefry, whose only reader is elementwise.
      gathers: Rule 1: ops that read each element as often as they pick it.
      partial_reads: Rule 1: slices, which read only as much as they write.
      storing: Rule 3: what it costs to compute a value again, and to store it.
      never_materialised: Rules 3, 4: views and fused scatters, not written however many readers they have.
      loops: Ops whose kernel is a loop over elements, which others of its kind can join (`SharedPasses`).
    """

    graph: Graph
    rows: RowRules
    needed_operands: tuple[tuple[int, ...], ...]
    transposed_stacks: frozenset[int]
    writes_memory: Ops
    same_size_views: Ops
    products: ProductRules
    after_forward: Ops
    draws: Ops
    gathers: Ops
    partial_reads: Ops
    storing: StoringCosts
    never_materialised: Ops
    loops: Ops


def unfolded_rules(graph: Graph, rates: Rates | None = None) -> FusionRules:
    """The rules of a graph on a device of these rates, with no reduction fused by rule 5 yet.

    Which reductions are fused depends on what the other rules fuse.
    """

    # One line a rule, most of them with a condition of its own.
    def ops(condition: Callable[[Op], bool]) -> Ops:
        return frozenset(op.id for op in graph.ops if condition(op))

    layouts, derived = graph.once(Layouts), argument_derived_values(graph)
    fused_scatters, copies = graph.once(scatters_fused_with_add), copied_views(graph)
    written_views = copies | _gathered_views(graph)
    has_library = rates is not None and rates.has_product_library
    joined = _joined(graph) if has_library else {}
    scattered_into = dict(_scattered_into(graph, fused_scatters))
    own_kernels = copies | _products_in_memory(graph, layouts) | scattered_into.keys()
    transposing = ops(lambda op: op.kind is Kind.ELEMENTWISE and layouts.transposes(op.reads, op.writes))
    exchanged = exchanged_products(graph) - own_kernels
    spare = {} if rates is None else {op.id: _spare_bytes(graph, op, rates) for op in graph.ops}
    of_compiler = {op for op in graph.once(read_from_transforms) if number_of_parts(graph, graph.ops[op]) == 1}
    library = {op: spare_bytes for op, spare_bytes in spare.items() if spare_bytes > 0 and op not in of_compiler}
    draws, merged_axes = ops(lambda op: _is_draw(graph, op)), _with_merged_axes(graph)
    polynomials = ops(lambda op: op.primitive in _POLYNOMIALS and _is_of_narrow_product(graph, op, merged_axes))
    loaded = {op.id: _loaded(graph, op, derived) for op in graph.ops if op.id not in own_kernels}
    return FusionRules(
        graph=graph,
        rows=_row_rules(graph, layouts),
        needed_operands=tuple(
            scattered_into.get(op.id) or _needed(op, fused=op.id in fused_scatters, polynomial=op.id in polynomials)
            for op in graph.ops
        ),
        transposed_stacks=frozenset(v.id for v in graph.values if graph.loops and layouts.transposes_stack(v.id)),
        writes_memory=ops(lambda op: op.kind in _WRITES_MEMORY or bool(op.effects)) - fused_scatters - draws
        | own_kernels,
        same_size_views=ops(lambda op: is_view_of(graph, op)) - written_views,
        products=ProductRules(
            dots=ops(lambda op: is_matrix_product(op) and not sums_padded_parts(graph, op)) - library.keys(),
            library=library,
            plain=ops(lambda op: has_library and is_matrix_product(op) and op.id not in of_compiler),
            library_epilogues=ops(lambda op: _is_library_epilogue(graph, op)) | exchanged,
            loaded_operands={op: position for op, position in loaded.items() if position is not None},
            only_for_products=ops(lambda op: op.kind is Kind.ELEMENTWISE and _only_products_read(graph, op)),
            joined=joined,
            with_epilogues={
                op.id: graph.elements(op.writes[0]) >= _TILES_ELEMENTS
                for op in graph.ops
                if op.id not in own_kernels and _has_epilogue(graph, op)
            },
            epilogues=(ops(lambda op: _is_epilogue(graph, op)) | exchanged) - copies - transposing,
            several_batch_axes=ops(lambda op: has_several_batch_axes(graph, op)),
            repeating=ops(lambda op: _repeats_operand(graph, op)),
            views=ops(_keeps_order) - copies,
            merged_axes=merged_axes,
            given=ops(lambda op: op.kind is Kind.BARRIER or op.primitive == CARRY),
        ),
        after_forward=ops(lambda op: op.phase is not Phase.FORWARD),
        draws=draws,
        gathers=ops(lambda op: op.primitive == "gather"),
        partial_reads=ops(lambda op: op.primitive in _READS_PART),
        storing=StoringCosts(
            expensive={op.id: _expense_bytes(graph, op, rates) for op in graph.ops if _is_expensive(op)},
            launch_bytes=0.0 if rates is None else _LAUNCH_S * rates.memory_bandwidth_bytes_per_s,
            parts_bytes={op.id: size for op in graph.ops if (size := parts_bytes(graph, op))},
        ),
        never_materialised=ops(lambda op: op.kind is Kind.VIEW) - written_views | fused_scatters,
        loops=ops(lambda op: op.kind in _LOOPS and not op.effects) - own_kernels.union(*joined.values()),
    )


def _is_expensive(op: Op) -> bool:
    return op.primitive in _EXPENSIVE and op.phase is Phase.FORWARD


def _expense_bytes(graph: Graph, op: Op, rates: Rates | None) -> float:
    """Rule 3: the bytes that memory moves while an expensive op is computed; without rates, no number is as large."""
    if rates is None:
        return inf
    seconds = _EXPENSIVE[op.primitive] * max(map(graph.elements, op.writes)) / rates.vector_flops_per_s
    return seconds * rates.memory_bandwidth_bytes_per_s


def _is_draw(graph: Graph, op: Op) -> bool:
    """True for random bits by Threefry that one elementwise op of the same body reads, and nothing else."""
    if not is_threefry_draw(graph, op):
        return False
    readers = [graph.ops[reader] for reader in graph.readers[op.writes[0]]]
    return [(reader.kind, reader.loop) for reader in readers] == [(Kind.ELEMENTWISE, op.loop)]


def _scattered_into(graph: Graph, fused_scatters: Ops) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Rule 4: additions with a scatter, each with the positions of what is scattered into, which is in memory."""
    for scatter in fused_scatters:
        (result,) = graph.ops[scatter].writes
        addition = graph.ops[graph.readers[result][0]]
        yield addition.id, tuple(position for position, value in enumerate(addition.reads) if value != result)


def _products_in_memory(graph: Graph, layouts: Layouts) -> Ops:
    """Rule 6: transposed products that several ops read."""
    readers = {op: {r for v in graph.ops[op].writes for r in graph.readers[v]} for op in layouts.transposed}
    return frozenset(op for op, reading in readers.items() if len(reading) > 1)


def _gathered_views(graph: Graph) -> Ops:
    """The last of the views that alone read a gather, where one transposes: its kernel writes what they show."""
    found = set[int]()
    for gather in (op for op in graph.ops if op.primitive == "gather"):
        views = list(_sole_views(graph, gather.writes[0]))
        if any(view.primitive == "transpose" for view in views):
            found.add(views[-1].id)
    return frozenset(found)


def _sole_views(graph: Graph, value: int) -> Iterator[Op]:
    """Views of one size that alone read a value, one after the other."""
    while len(graph.readers[value]) == 1:
        view = graph.ops[graph.readers[value][0]]
        if not is_view_of(graph, view):
            return
        yield view
        value = view.writes[0]


def _has_epilogue(graph: Graph, op: Op) -> bool:
    """True for a product whose kernel may go on with its result: it is complete, and of this product alone."""
    if not is_matrix_product(op) or op.effects or op.exchange_bytes or op.id in graph.once(merged_products):
        return False
    is_large = graph.elements(op.writes[0]) >= _TILES_ELEMENTS
    return number_of_parts(graph, op) == 1 and (is_large or (op.loop is not None and not is_batched(graph, op)))


def _spare_bytes(graph: Graph, op: Op, rates: Rates) -> float:
    """Rule 9: the bytes that memory could move during a matrix product beyond those of its operands and result."""
    if not is_matrix_product(op):
        return 0.0
    traffic_bytes = graph.size_bytes((*op.reads, *op.writes))
    return rates.bytes_during_product(op.flops or 0, graph.values[op.reads[0]].dtype) - traffic_bytes


def _is_library_epilogue(graph: Graph, op: Op) -> bool:
    """True for the addition of a matrix or of one row, a product with a constant, and relu.

    A bias for each matrix of a batch is not one row.
    """
    if op.primitive in ("mul", "div") or Trait.RELU in op.traits:
        return len(op.reads) == 1
    if op.primitive not in ("add", "add_any"):
        return False
    shape = graph.values[op.writes[0]].shape
    rows = {shape, (*(1 for _ in shape[:-1]), *shape[-1:])}
    return all(graph.values[v].shape in rows for v in op.reads)


def _only_products_read(graph: Graph, op: Op) -> bool:
    """True if products read the result of an op, directly or through views, and nothing else does."""
    readers = [graph.ops[reader] for v in op.writes for reader in graph.readers[v]]
    return bool(readers) and all(
        is_matrix_product(reader) or (is_view_of(graph, reader) and _only_products_read(graph, reader))
        for reader in readers
    )


def _joined(graph: Graph) -> Mapping[int, Ops]:
    """For each product that takes in concatenations, the concatenations."""
    found = dict[int, Ops]()
    for op in graph.ops:
        for product in _joining(graph, op):
            found[product] = found.get(product, frozenset()) | {op.id}
    return found


def _joining(graph: Graph, op: Op) -> Iterator[int]:
    """The products that take in a concatenation: they alone read it, its parts are whole tiles, and its axis is kept.

    One such concatenation is the gradient of a `split`. XLA first puts it into the kernels of those products, which so
    read its operands, and then lets a library compute some of the products: each of these has a concatenation of its
    own. If the rows are several axes, a product that is summed in parts takes a concatenation in only where each part
    has whole outer axes, and no product does whose tiles cross the last of these axes. None takes in a concatenation of
    transposed products.
    """
    if op.primitive != "concatenate" or len(op.reads) < 2 or not _only_products_read(graph, op):
        return
    (written,) = op.writes
    if written in graph.once(copied_for_each_product):
        return
    shapes = [graph.values[v].shape for v in op.reads]
    longer = (i for i, length in enumerate(graph.values[written].shape) if length != shapes[0][i])
    axis = next(longer, None)  # none where the other parts are empty
    if axis is None or any(shape[axis] % _JOINED_LENGTH for shape in shapes):
        return
    others = [length for i, length in enumerate(graph.values[written].shape) if i != axis and length > 1]
    is_one_axis, is_tiled = len(others) == 1, bool(others) and others[-1] % _ROWS_LENGTH == 0
    by_outer_axes = {1, *accumulate(others, mul)} if is_tiled else ()
    for reader in map(graph.ops.__getitem__, graph.readers[written]):
        has_outer_axes = is_one_axis or number_of_parts(graph, reader) in by_outer_axes
        is_padded = sums_padded_parts(graph, reader)  # then the concatenation is written into the longer array
        if has_outer_axes and not is_padded and keeps_axis(graph, reader, written, axis):
            yield reader.id


def _is_of_narrow_product(graph: Graph, op: Op, merged_axes: Ops) -> bool:
    """True if an op reads what is computed of a product with merged axes, in a type narrower than float32."""
    value = graph.values[op.reads[0]]
    return graph.producer[value.id] in merged_axes and value.size_bytes < 4 * graph.elements(value.id)


def _with_merged_axes(graph: Graph) -> Ops:
    """Products with merged axes, and elementwise ops of their results."""
    found, values = set[int](), set[int]()
    for op in graph.ops:
        is_behind = _is_epilogue(graph, op) and not values.isdisjoint(op.reads)
        if is_behind or has_merged_axes(graph, op):
            found.add(op.id)
            values.update(op.writes)
    return frozenset(found)


def _is_epilogue(graph: Graph, op: Op) -> bool:
    """True for an op that a product may apply to its result: elementwise, and its own result is not larger."""
    is_loop = op.kind in (Kind.ELEMENTWISE, Kind.VIEW)
    if op.primitive not in _EPILOGUE or not is_loop or op.effects or len(op.writes) != 1:
        return False
    if Trait.REUSES_ARRAY in op.traits:
        return False
    grown_bytes = graph.values[op.writes[0]].size_bytes - graph.size_bytes(op.reads)
    return grown_bytes <= _MOST_GROWTH_BYTES


def _repeats_operand(graph: Graph, op: Op) -> bool:
    """True if an elementwise op has an operand that is a constant, or a broadcast of a smaller array."""
    if op.kind is not Kind.ELEMENTWISE:
        return False
    producers = (graph.producer[v] for v in op.reads)
    has_literal = op.detail.rpartition(" ")[2].startswith("@")
    return has_literal or any(p is not None and graph.ops[p].primitive == "broadcast_in_dim" for p in producers)


def _keeps_order(op: Op) -> bool:
    return op.kind is Kind.VIEW and op.primitive != "transpose" and len(op.reads) == 1


def _needed(op: Op, *, fused: bool, polynomial: bool) -> tuple[int, ...]:
    """The positions of the operands that are in memory, for an op that may be a fused scatter, or of `polynomials`."""
    if op.kind in _NEEDS_MEMORY or op.effects or polynomial:
        return tuple(range(len(op.reads)))
    return (0,) if op.kind is Kind.SCATTER and not fused and op.reads else ()


def _loaded(graph: Graph, op: Op, derived: frozenset[int]) -> int | None:
    """The only operand that is no broadcast of arguments.

    None if the op does not keep its size, is a polynomial, or is a call whose body reads an array several times.
    """
    if op.kind is not Kind.ELEMENTWISE or op.effects or op.primitive in _POLYNOMIALS or len(op.writes) != 1:
        return None
    if Trait.REUSES_ARRAY in op.traits:
        return None
    size_bytes = graph.values[op.writes[0]].size_bytes

    def is_broadcast_argument(value: int) -> bool:
        return value in derived and is_broadcast_over(graph, value, size_bytes)

    arrays = [position for position, value in enumerate(op.reads) if not is_broadcast_argument(value)]
    if len(arrays) != 1 or graph.values[op.reads[arrays[0]]].size_bytes != size_bytes:
        return None
    return arrays[0]


### Row reductions that a kernel can hold while it works: reduced and used again, as a softmax does


def _is_row_reduction(graph: Graph, op: Op) -> bool:
    """True if an op reduces the last axes of its operand, over at most `_LONGEST_ROW` elements."""
    if len(op.reads) != 1 or len(op.writes) != 1 or op.effects:
        return False
    operand, rows = graph.values[op.reads[0]].shape, graph.values[op.writes[0]].shape
    return operand[: len(rows)] == rows and 1 < prod(operand[len(rows) :]) <= _LONGEST_ROW


def _meets_its_operand(graph: Graph, op: Op) -> bool:
    """True if what was reduced meets the result itself, and not only what is computed of it (a mean, a deviation).

    All reductions of backward passes count: a softmax's gradient scales its sums.
    """
    if op.phase is not Phase.FORWARD:
        return True
    operand_bytes = graph.values[op.reads[0]].size_bytes
    pending = list(op.writes)
    seen = set(pending)
    while pending:
        for reader in map(graph.ops.__getitem__, graph.readers[pending.pop()]):
            if reader.kind is Kind.VIEW or reader.primitive in _KEEPS_VALUE:
                pending.extend(v for v in reader.writes if v not in seen)
                seen.update(reader.writes)
            elif 2 * graph.size_bytes(reader.writes) >= operand_bytes:
                return True
    return False


def _row_rules(graph: Graph, layouts: Layouts) -> RowRules:
    reductions = [op for op in graph.ops if op.kind is Kind.REDUCTION]
    complete = [op for op in reductions if not layouts.reduces_strided_axes(op) and _is_row_reduction(graph, op)]
    statistics = _statistics(graph, frozenset(op.id for op in complete if op.primitive == "reduce_sum"))
    rows = statistics.union(op.id for op in complete if _meets_its_operand(graph, op))
    exponentials = _unheld_exponentials(graph, rows)
    return RowRules(
        nested_reductions=frozenset(op.id for op in complete),
        row_reductions=rows,
        stored_exponentials=exponentials,
        separate_reductions=_reductions_of(graph, exponentials),
        statistics=statistics,
        column_reductions=frozenset(op.id for op in reductions).difference(op.id for op in complete),
        cuts=frozenset(op.id for op in graph.ops if rows and _cuts_rows(graph, op)),
        foreign=frozenset(op.id for op in graph.ops if rows and op.primitive in _NOT_OF_ROWS),
    )


def _cuts_rows(graph: Graph, op: Op) -> bool:
    """True for a slice that takes a part of the last axis."""
    if op.primitive not in _READS_PART or not op.reads:
        return False
    read, written = graph.values[op.reads[0]].shape, graph.values[op.writes[0]].shape
    return bool(read) and len(read) == len(written) and written[-1] < read[-1]


def _statistics(graph: Graph, sums: Ops) -> Ops:
    """Of some sums over rows those of layer norms, by a mean and a variance of what is left, and of their gradients.

    The variance is a sum of what the mean went into. A sum of the backward pass is one of theirs if it adds up what
    they went into. What a matrix product reads is in memory, and the sums behind it are others.
    """
    of_values: dict[int, Ops] = {}
    """For each value the sums that went into it."""
    before: dict[int, Ops] = {}
    """For each sum those before it."""
    for op in graph.ops:
        went_into = _latest(of_values[v] for v in op.reads if v in of_values)
        if op.id in sums:
            shape = graph.values[op.writes[0]].shape
            before[op.id] = frozenset(o for o in went_into if graph.values[graph.ops[o].writes[0]].shape == shape)
            went_into = frozenset((op.id,))
        elif op.kind not in (Kind.ELEMENTWISE, Kind.VIEW):
            continue
        for v in op.writes if went_into else ():
            if all(graph.ops[reader].kind not in _NEEDS_MEMORY for reader in graph.readers[v]):
                of_values[v] = went_into
    pairs = ({op, *before[op]} for op in before if before[op] and graph.ops[op].phase is Phase.FORWARD)
    found = frozenset[int]().union(*pairs)
    identities = {_identity(graph.ops[op]) for op in found}  # XLA computes equal sums once
    found |= {op for op in before if _identity(graph.ops[op]) in identities}
    backward = {op for op in before if graph.ops[op].phase is Phase.BACKWARD}
    return found | {op for op in backward if not before[op].isdisjoint(found)}


def _latest(some: Iterable[Ops]) -> Ops:
    """The latest ones of sums: a sum of layer norms has few others between itself and those that it goes with."""
    sums = frozenset[int]().union(*some)
    return sums if len(sums) <= _MOST_SUMS else frozenset(nlargest(_MOST_SUMS, sums))


def _identity(op: Op) -> tuple[str, str, tuple[int, ...]]:
    return op.primitive, op.detail, op.reads


def _unheld_exponentials(graph: Graph, rows: Ops) -> Ops:
    """Exponentials of a softmax whose rows no kernel holds through both of its reductions."""
    exponentials = (op for op in graph.ops if op.primitive == "exp" and op.phase is Phase.FORWARD)
    return frozenset(op.id for op in exponentials if _is_unheld(graph, op, rows))


def _is_unheld(graph: Graph, exponential: Op, rows: Ops) -> bool:
    """True for the exponential of a softmax (summed, divided, of what reads a row's maximum) that no kernel holds."""
    readers = [graph.ops[r] for r in graph.readers[exponential.writes[0]] if graph.ops[r].phase is Phase.FORWARD]
    sums = [reader for reader in readers if reader.id in rows]
    is_softmax = sums and len(sums) < len(readers) and _reads_reduction(graph, exponential, rows)
    return bool(is_softmax) and not _is_held_twice(graph, sums[0])


def _reads_reduction(graph: Graph, op: Op, rows: Ops) -> bool:
    """True if an op reads a row reduction through elementwise ops and views."""
    pending, seen = list(op.reads), set[int]()
    while pending:
        producer = graph.producer[pending.pop()]
        if producer is None or producer in seen:
            continue
        if producer in rows:
            return True
        seen.add(producer)
        if graph.ops[producer].kind in (Kind.ELEMENTWISE, Kind.VIEW):
            pending.extend(graph.ops[producer].reads)
    return False


def _is_held_twice(graph: Graph, total: Op) -> bool:
    """True if a kernel holds the rows of a softmax through its maximum and this sum."""
    operand, rows = (graph.values[v].shape for v in (total.reads[0], total.writes[0]))
    length = prod(operand[len(rows) :])
    is_power_of_two = length & (length - 1) == 0
    return is_power_of_two and (length <= _SHORT_ROW or graph.elements(total.writes[0]) > _FEW_ROWS)


def _reductions_of(graph: Graph, ops: Ops) -> Ops:
    """Reductions of the results of some ops, directly or after elementwise ops and views."""
    found, seen = set(), set(ops)
    pending = [v for op in ops for v in graph.ops[op].writes]
    while pending:
        for reader in graph.readers[pending.pop()]:
            if reader in seen:
                continue
            seen.add(reader)
            if graph.ops[reader].kind is Kind.REDUCTION:
                found.add(reader)
            elif graph.ops[reader].kind in (Kind.ELEMENTWISE, Kind.VIEW):
                pending.extend(graph.ops[reader].writes)
    return frozenset(found)
