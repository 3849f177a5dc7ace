"""Fusion: which values of a step a compiler materialises, and which only pass through a kernel.

XLA runs chains of elementwise ops as one kernel (loop fusion, producer-consumer fusion). A value inside such a chain is
never in memory: its readers read the chain's sources and compute it on the way. So neither bytes nor seconds can be
counted equation by equation. These rules mark the values that are materialised, written to memory by a kernel:

1. A contraction, a reduction, a scatter or an opaque op writes memory. The operands of contractions and opaque ops and
   the base of a scatter are in memory, too, or are same-size views of something in memory. A gather fuses: it computes
   the elements that it picks, and writes them in the order of a transposition that alone reads them. The reader of
   random bits draws them, by Threefry. A matrix product applies by itself what was done to each element of one array
   and of broadcast arguments (relu, tanh, a scale, a bias), unless that array is read several times on the way (silu,
   softplus).
2. Results of the step are in memory, and what passes a barrier, its trigger too.
3. A value with several readers is in memory where reading its sources again costs more than writing it once, by a
   kernel of its own, and reading it back: with k readers, source bytes F, own bytes B and, in the body of a loop, the
   bytes L that memory moves while a kernel starts, if F + B + (k - 1) B + L <= k F. A residual stream `x + f(x)` is; a
   cast, a bias or an activation of one large source is not, and small arrays, as in the cells of recurrent nets, hardly
   ever are. Of fewer than four kernels, a source that one reads in any case does not count for that kernel
   (`shared_sources`). Of a chain of ops, each read by the next one alone, the end is stored, and not what leads to it.
   A kernel that reads a part of a value counts as such a part of a reader. A value of many instructions an element
   (tanh, erfc) has sources larger by what memory moves meanwhile: it is in memory where several kernels read it, unless
   they hold rows, or are merged into one kernel; `erf` is one instruction. A matrix product that applies the op itself
   (rule 1) does not count as a reader; it does so unless another product has computed the op's operand. A polynomial
   such as `erfc` that is computed in float32 of a narrower product with several axes of rows has its operand in memory
   besides, unless a barrier stands between. A gather that picks each element of its table k times reads it as k kernels
   do: the nodes of a graph with many edges are in memory, not the messages. The parts of a product (`padding`) are
   sources of their sum: in the body of a loop either the parts are in memory, and all readers add them up, or the sum
   is.
4. `a + scatter_add(zeros, ...)`, the gradient of a gather or of a pooling, is a scatter into `a`, which is in memory,
   unless `a` is broadcast or another such scatter: of two that are added to each other both are in memory, and of two
   that are added to `a` the second.
5. A row reduction (a softmax's maximum and sum) is fused into the kernel that uses its result directly, where that
   kernel reads the same large arrays anyway: it holds each row while it works. The result is written by a pass of its
   own where a backward pass or a barrier reads it, too. A maximum is written for a barrier only, since the sum behind
   it and every other reader go over the rows anyway. A result that is recomputed for a backward pass alone is not
   written either. Where a backward pass reads what is between the two reductions of a softmax, the kernel holds rows
   through both only if their length is a power of two, and they are short or many; else the exponentials are in memory,
   and what reduces them or their gradient is a pass of its own. The mean of a layer norm, a variance that is computed
   with this mean, and the sums of their gradients are fused into every kernel that reads them: it has the rows anyway.
   A variance by the mean of the squares is written for the backward pass, and so is the mean. A kernel that holds rows
   adds up no columns: the gradient of a scale reads what such a kernel wrote. Some ops it does not compute, and of rows
   that are cut it is not part (`row_kernels`). Which reductions are fused is decided as if loops were unrolled.
6. A product that meets another one of another layout (`jaxckpt.schedule.layout`) is transposed, and then in memory
   where it has several readers. Rows whose elements do not lie together are no rows. A view of a product that the next
   one cannot read as it lies is a copy (`jaxckpt.schedule.layout`).
7. A value of one loop that another one reads is in memory, once for every iteration, and so is a value of an outer
   level that is read in a loop's body.
8. The kernel of a product goes on with an elementwise op that alone reads its result, and so on (the epilogue). A
   transposition of rows and columns is one, too, since the product can exchange its operands. The op's other operands
   are arguments, values that passed a barrier, broadcasts of these, and results of other products: XLA fuses matrix
   products before anything else, one after the other: of two with epilogues whose results are added, the last one adds
   them. A product that is summed in parts has no epilogue, and neither has one that is merged with others
   (`merged_products`). Behind a product of several batch axes, of which XLA makes one, an epilogue ends before an
   operand that is repeated over the result: a scale, a bias, a mask. jax 0.10.2 goes on there.
9. A matrix product that a library computes (`Rates.is_library_product`) applies nothing to what it loads, and to its
   result at most a constant factor, the addition of one row or of another matrix, and a relu. XLA splits the kernel
   that it had fused. The operand is in memory from the first product that reads it on, and any other epilogue (rule 8)
   is a kernel behind the product, which reads what the library wrote. A product with which nothing is fused is a
   library's, too; one whose epilogue reads and writes so much that its kernel would wait for memory is none. What such
   a product could have applied to one array (rule 1) is a kernel in front of each product that reads it.
10. A product reads the parts of a concatenation, or what they repeat, if it sums over another axis. One that a library
   computes has a concatenation of its own for this. A product that sums over the axis reads the array itself, which is
   written in front of the first such product.

A value that is not in memory but smaller than its sources (a dropout mask, computed of random bits) is `optional`:
worth saving, if something must be saved. Kernels that share a pass over an array, multi-output fusion, are in
`shared_passes`.

A plan changes who reads what, and with it what is in memory: `fuse` looks at the step as it is, and `FusionRules` are
what `replay` asks for the steps of any plan.

Read after `fusion_analysis`. A model: what it misses shows up as the difference between predicted and compiled bytes,
and is corrected from there. Complexity: linear in ops times the (small) number of sources.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from jaxckpt.cost.fusion_analysis import FusionAnalysis, SourceBytes
from jaxckpt.cost.fusion_rules import FusionRules, unfolded_rules
from jaxckpt.cost.rates import Rates
from jaxckpt.ir import Graph, Kind, Op, Phase
from jaxckpt.schedule import Run
from jaxckpt.schedule.argument_derived import argument_derived_values
from jaxckpt.schedule.steps import unchanged_runs

_MUCH_SMALLER = 0.75
"""An optional value takes at most this share of its sources; else saving the sources is as good. 1/2, 3/4 and 1 predict
the same plans equally well (`python -m benchmarks.constants`)."""
_SMALL = 1 / 8
"""Of what a kernel reads, arrays below this share of the largest one are per row, not per element. With 1/16 the errors
of the model are the same, with 1/4 those of seconds 6.2% instead of 6.5% (`python -m benchmarks.constants`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fusion:
    """The values in memory when a graph runs as it is.

    Attributes:
      rules: Hold for any plan.
      materialised: Values that some kernel writes to memory; of small values in loops those that a kernel would write
        if it started in no time.
      optional: Forward values inside a kernel that are smaller than their sources.
      inside_products: Values that a matrix product computes on the way to what it writes.
      argument_derived: Values made of arguments and constants by views and elementwise ops alone: casts of parameters,
        masks, positions. They cost next to nothing to recompute and are never worth saving.
      sources: For every value what is read of memory to have it; a materialised value is its own source.
    """

    rules: FusionRules
    materialised: frozenset[int]
    optional: frozenset[int]
    inside_products: frozenset[int]
    argument_derived: frozenset[int]
    sources: tuple[SourceBytes, ...]


def fuse(graph: Graph, rates: Rates | None = None) -> Fusion:
    """The fusion of a graph as traced, with nothing recomputed, on a device of these rates.

    Without rates no matrix product is a library's (rule 9).
    """
    rules = fusion_rules(graph, rates)
    # As if kernels started in no time: plans may save small arrays, too, though each kernel computes them by itself.
    quick = replace(rules, storing=replace(rules.storing, launch_bytes=0.0))
    analysis, _ = _run(quick, graph.ops, graph.outputs)
    materialised, derived = frozenset(analysis.materialised), argument_derived_values(graph)
    unwritten = {v for op in graph.ops if op.phase is Phase.FORWARD for v in op.writes} - materialised - derived
    return Fusion(
        rules=rules,
        materialised=materialised,
        optional=frozenset(v for v in unwritten if _is_optional(graph, v, analysis.sources[v])),
        inside_products=frozenset(analysis.inside_products),
        argument_derived=derived,
        sources=tuple(analysis.sources),
    )


def _is_optional(graph: Graph, value: int, sources: SourceBytes) -> bool:
    """True if a value is much smaller than its sources, and the backward reads it."""
    is_small = 0 < graph.values[value].size_bytes <= _MUCH_SMALLER * sum(sources.values())
    return is_small and any(graph.ops[reader].phase is not Phase.FORWARD for reader in graph.readers[value])


def fusion_rules(graph: Graph, rates: Rates | None = None) -> FusionRules:
    """The rules of a graph, with the row reductions that rule 5 fuses.

    First those of the forward pass by itself, for values that no backward pass reads. A value inside of a kernel that
    holds rows is no longer expensive: that kernel computes it once. Then those of the complete step.
    """
    rules = unfolded_rules(graph, rates)
    forward = [op for op in graph.ops if op.phase is Phase.FORWARD]
    rules = _with_folded(rules, forward)
    folded_if_unread = rules.rows.folded
    held = frozenset(_run(rules, forward, ())[0].rows.inside)
    expensive = {op: size for op, size in rules.storing.expensive.items() if held.isdisjoint(graph.ops[op].writes)}
    rules = _with_folded(replace(rules, storing=replace(rules.storing, expensive=expensive)), graph.ops)
    recomputed = _with_folded(rules, graph.ops, read_by_forward=False).rows.folded
    return replace(
        rules,
        rows=replace(
            rules.rows,
            folded_if_unread=folded_if_unread,
            folded_in_backward=rules.rows.folded | recomputed,
            values=held,
        ),
    )


def _with_folded(rules: FusionRules, ops: Sequence[Op], *, read_by_forward: bool = True) -> FusionRules:
    """Rule 5 for a step of these ops alone: from all row reductions down to those that hold, a greatest fixed point.

    A reduction that is not fused after all may be a source of others, which then read less; so all are looked at anew.
    Without `read_by_forward` for reductions whose results only a backward pass reads.
    """
    is_complete = len(ops) == len(rules.graph.ops)
    folded = rules.rows.row_reductions.intersection(op.id for op in ops)
    folded -= rules.rows.separate_reductions if is_complete else frozenset()
    while True:
        rules = replace(rules, rows=replace(rules.rows, folded=folded, folded_if_unread=folded))
        if not folded:
            return rules
        analysis, reads = _run(rules, ops, rules.graph.outputs, is_unrolled=True)
        held = frozenset(op for op in folded if _holds(rules, op, analysis, reads, read_by_forward=read_by_forward))
        if held == folded:
            return rules
        folded = held


def _run(
    rules: FusionRules, ops: Sequence[Op], outputs: Sequence[int], *, is_unrolled: bool = False
) -> tuple[FusionAnalysis, Mapping[int, SourceBytes]]:
    """The analysis of some ops, run as they are, and what each of their kernels reads."""
    runs = rules.graph.once(unchanged_runs)
    steps = [runs[op.id] for op in ops]
    analysis = FusionAnalysis(rules, steps, range(len(rules.graph.values)), outputs, is_unrolled=is_unrolled)
    return analysis, {step.op: analysis.run(step) for step in analysis.joined.steps if isinstance(step, Run)}


def _holds(
    rules: FusionRules,
    op: int,
    analysis: FusionAnalysis,
    reads: Mapping[int, SourceBytes],
    *,
    read_by_forward: bool,
) -> bool:
    """True if every kernel that reads a row reduction goes over the same large arrays, and can hold their rows.

    A kernel may go over more arrays where it has the rows of the reduction's operand in any case: for a maximum, for a
    layer norm, and in a backward pass that alone reads the result.
    """
    graph = rules.graph
    (result,) = graph.ops[op].writes
    large = _large(reads[op])
    if not large or result in analysis.materialised:
        return False
    readers = [
        producer for written in analysis.readers.kernels[result] if (producer := graph.producer[written]) is not None
    ]
    if len(readers) < len(analysis.readers.kernels[result]):
        return False
    may_read_more = graph.ops[op].primitive == "reduce_max" or op in rules.rows.statistics
    if not read_by_forward and op not in rules.after_forward:
        readers = [r for r in readers if r in rules.after_forward or r in rules.rows.row_reductions]
        may_read_more = True
    if op in rules.rows.statistics:  # what columns are added up of is then in memory
        readers = [r for r in readers if r not in rules.rows.column_reductions]
    return all(
        (_large(reads[reader]) >= large if may_read_more else _large(reads[reader]) == large)
        and (reader in rules.rows.row_reductions or _is_per_element(graph, reader, reads[reader]))
        for reader in readers
    )


def _is_per_element(graph: Graph, op: int, sources: SourceBytes) -> bool:
    """True if an op writes an element for each that it reads: neither a reduction nor a figure per row."""
    written_bytes = graph.size_bytes(graph.ops[op].writes)
    return graph.ops[op].kind is not Kind.REDUCTION and written_bytes > _SMALL * max(sources.values())


def _large(sources: SourceBytes) -> frozenset[int]:
    largest = max(sources.values(), default=0)
    return frozenset(v for v, size_bytes in sources.items() if size_bytes > _SMALL * largest)


def strip_views(graph: Graph, value: int) -> int:
    """The value that a chain of views shows, if the views repeat nothing; else the value itself."""
    shown = value
    while (op := graph.producer[shown]) is not None:
        if graph.ops[op].kind is not Kind.VIEW or len(graph.ops[op].reads) != 1:
            break
        shown = graph.ops[op].reads[0]
        if graph.values[shown].size_bytes != graph.values[value].size_bytes:
            return value
    return shown
