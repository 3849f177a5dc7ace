"""The rules of `fusion` that depend on the graph alone: a function for each, which returns a set of ops.

`RULES` and `ROW_RULES` list them, `FusionRules` holds the sets. What is in memory under a plan also depends on who
reads what: `fusion_analysis` finds that from the sets. Read after `row_fusion`; `fusion_analysis` asks.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from jaxckpt.cost.row_fusion import is_row_reduction, meets_its_operand, reductions_of, unheld_exponentials
from jaxckpt.ir import Graph, Kind, Op, Phase
from jaxckpt.ir.regions import SLICE
from jaxckpt.schedule.argument_derived import argument_derived_values, is_broadcast_over, is_view_of
from jaxckpt.schedule.layout import Layouts, copied_views
from jaxckpt.schedule.scatter_inits import scatters_fused_with_add

_NEEDS_MEMORY = frozenset({Kind.CONTRACTION, Kind.OPAQUE, Kind.BARRIER})
_WRITES_MEMORY = frozenset({Kind.CONTRACTION, Kind.REDUCTION, Kind.SCATTER, Kind.OPAQUE, Kind.BARRIER})
_LOOPS = frozenset({Kind.ELEMENTWISE, Kind.VIEW, Kind.REDUCTION})
_EXPENSIVE = frozenset(
    {
        "tanh", "erf", "erfc", "erf_inv", "log1p", "sin", "cos", "tan", "pow", "cbrt", "atan2", "acos", "asin", "atan",
        "lgamma", "digamma",
    }
)  # fmt: skip
"""Elementwise ops that compilers do not run twice to save a write; an exponential they do."""
_EXPANDED = frozenset({"erf", "erfc", "erf_inv", "lgamma", "digamma"})
"""Ops that become a polynomial; their operand is used at many places of it."""
_READS_PART = frozenset({"dynamic_slice", "slice", "split", "unstack", "squeeze", SLICE})

Ops = frozenset[int]


class FusionFacts:
    """Properties of a graph that several rules need, each found once."""

    def __init__(self, graph: Graph):
        self.graph = graph

    def ops(self, condition: Callable[[Op], bool]) -> Ops:
        """The ops for which a condition holds."""
        return frozenset(op.id for op in self.graph.ops if condition(op))

    @cached_property
    def layouts(self) -> Layouts:
        """In which order the axes of values lie in memory."""
        return Layouts(self.graph)

    @cached_property
    def argument_derived(self) -> frozenset[int]:
        """Values made of arguments by views and elementwise ops alone."""
        return argument_derived_values(self.graph)

    @cached_property
    def fused_scatters(self) -> Ops:
        """Scatters that are fused with the addition that reads them (rule 4)."""
        return frozenset(scatters_fused_with_add(self.graph))

    @cached_property
    def copied_views(self) -> Ops:
        """Views that are copies, because the product that reads them cannot go over them as they lie (rule 6)."""
        return copied_views(self.graph)

    @cached_property
    def own_kernels(self) -> Ops:
        """Ops with a kernel of their own though their kind fuses: additions of rule 4, transposed products, copies."""
        graph = self.graph
        additions = {graph.readers[graph.ops[scatter].writes[0]][0] for scatter in self.fused_scatters}
        readers = {op: {r for v in graph.ops[op].writes for r in graph.readers[v]} for op in self.layouts.transposed}
        transposed = {op for op, reading in readers.items() if len(reading) > 1}
        return frozenset(additions | transposed | self.copied_views)

    @cached_property
    def strided_reductions(self) -> Ops:
        """Reductions over axes that do not lie together in memory; each is a pass of its own (rule 6)."""
        return self.ops(lambda op: op.kind is Kind.REDUCTION and self.layouts.reduces_strided_axes(op))

    @cached_property
    def row_reductions(self) -> Ops:
        """Reductions over complete rows that lie together, used by what was reduced (rule 5)."""
        graph = self.graph
        found = self.ops(lambda op: is_row_reduction(graph, op) and meets_its_operand(graph, op))
        return found - self.strided_reductions

    @cached_property
    def stored_exponentials(self) -> Ops:
        """Exponentials of a softmax that a backward pass finds in memory (rule 5)."""
        return unheld_exponentials(self.graph, self.row_reductions)


### Rules, each a set of ops


def writes_memory(facts: FusionFacts) -> Ops:
    """Rules 1, 4, 6: contractions, reductions, scatters, opaque ops, ops with effects, ops with their own kernels."""
    found = facts.ops(lambda op: op.kind in _WRITES_MEMORY or bool(op.effects))
    return found - facts.fused_scatters | facts.own_kernels


RULES: Mapping[str, Callable[[FusionFacts], Ops]] = {
    "writes_memory": writes_memory,
    # Rule 1: views of one array of the same size, which are in memory where that is.
    "same_size_views": lambda facts: facts.ops(lambda op: is_view_of(facts.graph, op)) - facts.copied_views,
    # Rule 1: products that apply elementwise ops to what they load.
    "dots": lambda facts: facts.ops(lambda op: op.primitive == "dot_general"),
    # Rule 5: ops of the backward pass and of the update.
    "after_forward": lambda facts: facts.ops(lambda op: op.phase is not Phase.FORWARD),
    # Rule 1: ops that read each element as often as they pick it.
    "gathers": lambda facts: facts.ops(lambda op: op.primitive == "gather"),
    # Rule 1: slices, which read only as much as they write.
    "partial_reads": lambda facts: facts.ops(lambda op: op.primitive in _READS_PART),
    # Rule 3: forward ops of many instructions an element.
    "expensive": lambda facts: facts.ops(lambda op: op.primitive in _EXPENSIVE and op.phase is Phase.FORWARD),
    # Rules 3, 4: views and fused scatters, which are not written however many readers they have.
    "never_materialised": lambda facts: (
        facts.ops(lambda op: op.kind is Kind.VIEW) - facts.copied_views | facts.fused_scatters
    ),
    # Ops whose kernel is a loop over elements, which others of its kind can join (`shared_passes`).
    "loops": lambda facts: facts.ops(lambda op: op.kind in _LOOPS and not op.effects) - facts.own_kernels,
}
"""Sets of `FusionRules`, by name."""
ROW_RULES: Mapping[str, Callable[[FusionFacts], Ops]] = {
    "strided_reductions": lambda facts: facts.strided_reductions,
    "row_reductions": lambda facts: facts.row_reductions,
    "stored_exponentials": lambda facts: facts.stored_exponentials,
    # Rule 5: reductions of stored exponentials, which are passes of their own.
    "separate_reductions": lambda facts: reductions_of(facts.graph, facts.stored_exponentials),
}
"""Sets of `RowRules`, by name."""


### What an op reads, as positions of its operands


def needed_operands(facts: FusionFacts) -> tuple[tuple[int, ...], ...]:
    """Rule 1: for each op the operands that must be in memory."""
    return tuple(_needed(op, scatters=op.id not in facts.fused_scatters) for op in facts.graph.ops)


def _needed(op: Op, *, scatters: bool) -> tuple[int, ...]:
    if op.kind in _NEEDS_MEMORY or op.effects or op.primitive in _EXPANDED:
        return tuple(range(len(op.reads)))
    return (0,) if op.kind is Kind.SCATTER and scatters and op.reads else ()


def loaded_operands(facts: FusionFacts) -> Mapping[int, int]:
    """Rule 1: for each op that a matrix product applies to what it loads, its operand that is not a broadcast."""
    found = {}
    for op in facts.graph.ops:
        if op.id not in facts.own_kernels and (position := _loaded(facts, op)) is not None:
            found[op.id] = position
    return found


def _loaded(facts: FusionFacts, op: Op) -> int | None:
    """The only operand that is no broadcast of arguments, if the op is cheap and elementwise and keeps its size."""
    if op.kind is not Kind.ELEMENTWISE or op.effects or op.primitive in _EXPENSIVE or len(op.writes) != 1:
        return None
    graph = facts.graph
    size_bytes = graph.values[op.writes[0]].size_bytes

    def is_broadcast_argument(value: int) -> bool:
        return value in facts.argument_derived and is_broadcast_over(graph, value, size_bytes)

    arrays = [position for position, value in enumerate(op.reads) if not is_broadcast_argument(value)]
    if len(arrays) != 1 or graph.values[op.reads[arrays[0]]].size_bytes != size_bytes:
        return None
    return arrays[0]


### All of them


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRules:
    """Rule 5, by op: sets of `ROW_RULES`, and which reductions and values they lead to.

    Attributes:
      folded: Reductions that are fused into the kernels that use them, in the step as it stands.
      folded_if_unread: Those of the forward pass that are fused where no backward reads their results.
      values: Values that then are only inside kernels that hold rows: saving one costs a pass over its rows.
    """

    strided_reductions: Ops
    row_reductions: Ops
    stored_exponentials: Ops
    separate_reductions: Ops
    folded: Ops = frozenset()
    folded_if_unread: Ops = frozenset()
    values: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class FusionRules:
    """The rules that hold for any plan of a graph: sets of ops, one for each row of `RULES`, and what belongs to them.

    Attributes:
      needed_operands: For each op the positions of operands that must be in memory.
      loaded_operands: For each op that a matrix product applies to what it loads, the position of its operand.
      transposed_stacks: Values that are transposed, all iterations at once, before a later loop reads their stack.
    """

    graph: Graph
    rows: RowRules
    needed_operands: tuple[tuple[int, ...], ...]
    loaded_operands: Mapping[int, int]
    transposed_stacks: frozenset[int]
    writes_memory: Ops
    same_size_views: Ops
    dots: Ops
    after_forward: Ops
    gathers: Ops
    partial_reads: Ops
    expensive: Ops
    never_materialised: Ops
    loops: Ops


def unfolded_rules(graph: Graph) -> FusionRules:
    """The rules of a graph, with no reduction fused by rule 5 yet: which are depends on what the other rules fuse."""
    facts = FusionFacts(graph)
    return FusionRules(
        graph=graph,
        rows=RowRules(**{name: rule(facts) for name, rule in ROW_RULES.items()}),
        needed_operands=needed_operands(facts),
        loaded_operands=loaded_operands(facts),
        transposed_stacks=frozenset(v.id for v in graph.values if graph.loops and facts.layouts.transposes_stack(v.id)),
        **{name: rule(facts) for name, rule in RULES.items()},
    )
