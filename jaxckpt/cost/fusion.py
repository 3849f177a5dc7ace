"""Which values of a step a compiler writes to memory, and which only pass through a kernel.

XLA runs chains of elementwise work as one kernel. A value inside such a chain is never in memory: who needs it
reads the chain's sources and computes it on the way. So neither bytes nor seconds can be counted equation by
equation. The rules mark the values that are in memory ("materialised"):

1. What a contraction, a reduction, a scatter or an opaque op writes is in memory, and so is what it needs there:
   the operands of contractions and opaque ops and the base of a scatter, where they are not mere views of
   something in memory; and what a compiler puts into a long polynomial (erf, erfc). A gather fuses: it computes the
   elements that it picks. A matrix product does by itself what was done to each element of one array that it reads
   and of arguments (relu, a scale, a bias).
2. What the step returns is in memory, and what passes a barrier.
3. A value with several readers is in memory where reading its sources again costs more traffic than writing it
   once and reading it back: with k readers, source bytes F and own bytes B, if F + B + (k - 1) B <= k F.
   A residual stream `x + f(x)` is; a cast, a bias or an activation of one large source is not.
   What takes many instructions an element (tanh, erf) is in memory where several kernels read it, unless they hold
   rows.
4. `a + scatter_add(zeros, ...)`, the gradient of a gather, is a scatter into `a`, unless `a` is broadcast.
5. A reduction of rows (a softmax's maximum and sum) folds into the kernel that uses it as it is, where that kernel
   reads the same large arrays anyway: it holds each row while it works. Where something else reads the result too, a
   backward pass or a barrier, it is written by a pass of its own. Where a backward pass reads what stands between the
   two reductions of a softmax, the kernel holds rows through both only if their length is a power of two, and they are
   short or many; else the exponentials are in memory, and what reduces them or their gradient is a pass of its own.
6. A product that meets another one of another order (see `layouts`) is turned, and then in memory where it has several
   readers. Rows that do not lie together are no rows. So is a view of a product that the next one cannot read as it
   lies (see `strides`).
7. What one loop makes and another reads is in memory, once for every turn, and so is what stands outside of a loop and
   is read in its body.

A value that is not in memory but smaller than its sources (a dropout mask beside its random bits) is
`optional`: worth keeping, if something must be kept.

A plan changes who reads what, and with it what is in memory: `fuse` looks at the step as it stands, and
`FusionRules` are what `replay` asks for the steps of any plan.

Read after `rows`. It is a model: what it misses shows up as the difference between predicted and compiled
bytes, and is corrected from there. Complexity: linear in ops times the (small) number of sources.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxckpt.cost.row_fusion import between_passes, is_row, is_used_as_it_is, reducing
from jaxckpt.ir import Graph, Kind, Op, Phase
from jaxckpt.ir.loop import SLICE
from jaxckpt.schedule import Run, Step
from jaxckpt.schedule.argument_derived import argument_derived_values, is_broadcast_over, is_view_of
from jaxckpt.schedule.layout import Layouts
from jaxckpt.schedule.layout_copies import copied_views
from jaxckpt.schedule.scatter_inits import scatters_fused_with_add
from jaxckpt.schedule.steps import run_of

SourceBytes = Mapping[int, int]
"""Values in memory that a value is computed from, each with the bytes that are read of it."""

_NEEDS_MEMORY = frozenset({Kind.CONTRACTION, Kind.OPAQUE, Kind.BARRIER})
_WRITES_MEMORY = frozenset({Kind.CONTRACTION, Kind.REDUCTION, Kind.SCATTER, Kind.OPAQUE, Kind.BARRIER})
_FUSES = frozenset({Kind.ELEMENTWISE, Kind.VIEW, Kind.REDUCTION})
_SLOW = frozenset(
    {
        "tanh", "erf", "erfc", "erf_inv", "log1p", "sin", "cos", "tan", "pow", "cbrt", "atan2", "acos", "asin", "atan",
        "lgamma", "digamma",
    }
)  # fmt: skip
"""Elementwise ops that compilers do not run twice to save a write; an exponential they do."""
_EXPANDED = frozenset({"erf", "erfc", "erf_inv", "lgamma", "digamma"})
"""Ops that become a polynomial; their operand is used at many places of it."""
_TOUCHES_PART = frozenset({"dynamic_slice", "slice", "split", "unstack", "squeeze", SLICE})
_MANY = 4
"""Readers are counted up to here; more do not change rule 3 in practice."""
_MUCH_SMALLER = 0.75
"""An optional value takes at most this share of its sources; else keeping the sources is as good."""
_SMALL = 1 / 8
"""Of what a kernel reads, arrays below this share of the largest one are per row, not per element."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fusion:
    """What is in memory when a graph runs as it stands.

    Attributes:
      rules: What holds for any plan.
      materialised: Values that some kernel writes to memory.
      optional: Forward values inside a kernel that are smaller than the sources which they stand for.
      fused_into_dots: Operands of matrix products that are not in memory: the products make them of what they load.
      argument_derived: Values made of arguments and constants by views and elementwise ops alone: casts of parameters,
        masks, positions. They cost next to nothing to recompute and are never worth saving.
      sources: For every value what is read of memory to have it; a materialised value is its own source.
    """

    rules: "FusionRules"
    materialised: frozenset[int]
    optional: frozenset[int]
    fused_into_dots: frozenset[int]
    argument_derived: frozenset[int]
    sources: tuple[SourceBytes, ...]


def fuse(graph: Graph) -> Fusion:
    """Decides which values of a graph are materialised.

    Args:
      graph: The step as traced; nothing recomputed.

    Returns:
      The fusion of the unplanned step.
    """
    rules = FusionRules(graph)
    steps = [run_of(op) for op in graph.ops]
    spread = FusionAnalysis(rules, steps, range(len(graph.values)), graph.outputs)
    for step in steps:
        spread.run(step)
    materialised = frozenset(spread.materialised)
    derived = argument_derived_values(graph)
    optional = frozenset(
        v
        for op in graph.ops
        if op.phase is Phase.FORWARD
        for v in op.writes
        if v not in materialised
        and v not in derived
        and spread.sources[v]
        and 0 < graph.values[v].size_bytes <= _MUCH_SMALLER * sum(spread.sources[v].values())
        and any(graph.ops[r].phase is not Phase.FORWARD for r in graph.readers[v])
    )
    loaded = {strip_views(graph, v) for op in graph.ops if rules.is_dot[op.id] for v in op.reads}
    return Fusion(
        rules=rules,
        materialised=materialised,
        optional=optional,
        fused_into_dots=frozenset(loaded) - materialised - derived,
        argument_derived=derived,
        sources=tuple(spread.sources),
    )


class FusionRules:
    """What of the rules depends on the graph alone, by op.

    Attributes:
      graph: The step.
      writes_memory: Whether the op's results are in memory by rule 1, 4 or 6.
      needs_memory: Positions of operands that must be there.
      is_view_of: Whether it is a view of one array of the same size.
      fused_operand: For an op that a matrix product does by itself to what it loads, the position of that; else None.
      is_dot: Whether it does so.
      after_forward: Whether it stands behind the forward pass.
      reads_part: Whether it reads only as much as it writes.
      is_gather: Whether it reads each element as often as it picks it.
      is_expensive: True if it takes many instructions an element, in the forward pass and outside of kernels that hold
        rows.
      never_materialised: Whether its results are never written for rule 3.
      fuses: Whether its kernel is a loop over elements, which others of its kind can join.
      strided_reductions: Reductions over axes that do not lie together in memory; each is a pass of its own.
      is_row: Whether it is a reduction over whole rows.
      stored_exponentials: Exponentials that a backward pass finds in memory, by rule 5.
      separate_reductions: Reductions of what these make, which are then passes of their own.
      folded_reductions: Ops of rule 5, in the step as it stands.
      folded_if_unread: Those of the forward pass that fold where no backward reads their results.
      transposed_stacks: Values that are turned, all turns at once, where they wait from one loop to another.
      inside_row_kernels: Values that are then only inside kernels that hold rows: saving one costs a pass over rows.
    """

    def __init__(self, graph: Graph):
        self.graph = graph
        into_addend = scatters_fused_with_add(graph)
        addends = {graph.readers[graph.ops[op].writes[0]][0] for op in into_addend}
        ops, layouts, derived = graph.ops, Layouts(graph), argument_derived_values(graph)
        turned = {op for op in layouts.transposed if len({r for v in ops[op].writes for r in graph.readers[v]}) > 1}
        copied = copied_views(graph)
        by_themselves = addends | turned | copied
        self.writes_memory = [
            op.id in by_themselves or (op.id not in into_addend and (op.kind in _WRITES_MEMORY or bool(op.effects)))
            for op in ops
        ]
        self.needs_memory = [_needs_memory(op, scatters=op.id not in into_addend) for op in ops]
        self.is_view_of = [op.id not in copied and is_view_of(graph, op) for op in ops]
        self.is_gather = [op.primitive == "gather" for op in ops]
        self.fused_operand = [None if op.id in by_themselves else _enters(graph, op, derived) for op in ops]
        self.is_dot = [op.primitive == "dot_general" for op in ops]
        self.after_forward = [op.phase is not Phase.FORWARD for op in ops]
        self.reads_part = [op.primitive in _TOUCHES_PART for op in ops]
        self.is_expensive = [op.primitive in _SLOW and op.phase is Phase.FORWARD for op in ops]
        self.never_materialised = [(op.kind is Kind.VIEW and op.id not in copied) or op.id in into_addend for op in ops]
        self.fuses = [op.kind in _FUSES and not op.effects and op.id not in by_themselves for op in ops]
        self.strided_reductions = frozenset(
            op.id for op in ops if op.kind is Kind.REDUCTION and layouts.reduces_strided_axes(op)
        )
        self.is_row = [
            op.id not in self.strided_reductions and is_row(graph, op) and is_used_as_it_is(graph, op) for op in ops
        ]
        self.stored_exponentials = between_passes(graph, frozenset(op.id for op in ops if self.is_row[op.id]))
        self.separate_reductions = reducing(graph, self.stored_exponentials)
        self.transposed_stacks = frozenset(v.id for v in graph.values if graph.loops and layouts.transposes_stack(v.id))
        self.folded_reductions: frozenset[int] = frozenset()
        self.folded_if_unread: frozenset[int] = frozenset()
        forward = [op for op in ops if op.phase is Phase.FORWARD]
        folds_unread = self._folding(forward)
        self.inside_row_kernels = self._of_rows(forward)
        self.is_expensive = [
            slow and self.inside_row_kernels.isdisjoint(ops[i].writes) for i, slow in enumerate(self.is_expensive)
        ]
        self.folded_reductions = self._folding(ops)
        self.folded_if_unread = folds_unread

    def _folding(self, ops: Sequence[Op]) -> frozenset[int]:
        """Rule 5, from all reductions of rows down to those that hold, for a step of these ops alone."""
        is_whole = len(ops) == len(self.graph.ops)
        apart = self.separate_reductions if is_whole else frozenset[int]()
        self.folded_reductions = self.folded_if_unread = frozenset(op.id for op in ops if self.is_row[op.id]) - apart
        steps = [run_of(op) for op in ops]
        outputs = self.graph.outputs
        while self.folded_reductions:
            spread = FusionAnalysis(self, steps, range(len(self.graph.values)), outputs)
            through = {step.op: spread.run(step) for step in steps}
            held = frozenset(op for op in self.folded_reductions if self._holds(op, spread, through))
            if held == self.folded_reductions:
                break
            self.folded_reductions = self.folded_if_unread = held
        return self.folded_reductions

    def _of_rows(self, ops: Sequence[Op]) -> frozenset[int]:
        steps = [run_of(op) for op in ops]
        spread = FusionAnalysis(self, steps, range(len(self.graph.values)), ())
        for step in steps:
            spread.run(step)
        return frozenset(spread.holding)

    def _holds(self, op: int, spread: "FusionAnalysis", through: Mapping[int, SourceBytes]) -> bool:
        (result,) = self.graph.ops[op].writes
        large = _large(through[op])
        if not large or result in spread.materialised:
            return False
        for end in spread.ends[result]:
            made = self.graph.producer[end]
            if made is None or _large(through[made]) != large:
                return False
            if not self.is_row[made] and not self._goes_over(made, through[made]):
                return False
        return True

    def _goes_over(self, op: int, sources: SourceBytes) -> bool:
        """Whether an op makes an element of each that it reads: neither a reduction nor a row's own figure."""
        written_bytes = sum(self.graph.values[v].size_bytes for v in self.graph.ops[op].writes)
        return self.graph.ops[op].kind is not Kind.REDUCTION and written_bytes > _SMALL * max(sources.values())


def _needs_memory(op: Op, *, scatters: bool) -> tuple[int, ...]:
    if op.kind in _NEEDS_MEMORY or op.effects or op.primitive in _EXPANDED:
        return tuple(range(len(op.reads)))
    return (0,) if op.kind is Kind.SCATTER and scatters and op.reads else ()


def _enters(graph: Graph, op: Op, derived: frozenset[int]) -> int | None:
    """Where an elementwise op that changes no size reads an array that everything else it reads is spread over."""
    if op.kind is not Kind.ELEMENTWISE or op.effects or op.primitive in _SLOW or len(op.writes) != 1:
        return None
    size_bytes = graph.values[op.writes[0]].size_bytes
    whole = [at for at, v in enumerate(op.reads) if v not in derived or not is_broadcast_over(graph, v, size_bytes)]
    return whole[0] if len(whole) == 1 and graph.values[op.reads[whole[0]]].size_bytes == size_bytes else None


def _large(sources: SourceBytes) -> frozenset[int]:
    largest = max(sources.values(), default=0)
    return frozenset(v for v, size_bytes in sources.items() if size_bytes > _SMALL * largest)


class FusionAnalysis:
    """What is in memory while steps run, found in one pass back (who reads what) and one forth (`run`).

    Args:
      rules: Of the graph.
      steps: In order.
      origin: For each instance the value that it is.
      outputs: Instances that are returned.

    Attributes:
      materialised: Instances that some step so far wrote to memory, and those that must be.
      sources: For every instance made so far what is read of memory to have it.
      ends: For every instance the kernels that read it, as what they write, up to `_MANY`.
      holding: Instances so far that are not in memory and inside a kernel that holds rows.
      loop: For every instance that a step makes the open loop in whose body; empty where the graph has none.
    """

    def __init__(self, rules: FusionRules, steps: Sequence[Step], origin: Sequence[int], outputs: Sequence[int]):
        graph = rules.graph
        self.rules = rules
        self.size_bytes = [graph.values[v].size_bytes for v in origin]
        self.materialised = {*graph.inputs, *graph.constants, *outputs}
        self._folded: set[int] = set()
        self.holding: set[int] = set()
        self.loop: dict[int, int | None] = {}
        self._force(steps)
        self.sources: list[SourceBytes] = [{}] * len(self.size_bytes)
        for v in (*graph.inputs, *graph.constants):
            self.sources[v] = {v: self.size_bytes[v]}
        self.ends = self._kernels_reading(steps)

    def run(self, step: Run) -> SourceBytes:
        """Settles what one step writes; returns what its kernel reads."""
        op, materialised = step.op, self.materialised
        through = self._through(op, step)
        for instance in step.writes:
            own = self.size_bytes[instance]
            if instance not in materialised and not self.rules.never_materialised[op] and instance not in self._folded:
                k = min(_MANY, len(self.ends[instance]))
                slow = self.rules.is_expensive[op] and bool(through)
                if k > 1 and (slow or own * k <= (k - 1) * sum(through.values())):
                    materialised.add(instance)
            if instance in materialised:
                self.sources[instance] = {instance: own}
                continue
            self.sources[instance] = through
            if instance in self._folded or self.holds_rows(step):
                self.holding.add(instance)
        return through

    def holds_rows(self, step: Run) -> bool:
        """Whether reductions of rows are folded into the kernel of a step."""
        return bool(self.holding) and not self.holding.isdisjoint(step.reads)

    def _through(self, op: int, step: Run) -> SourceBytes:
        """The sources of what an op writes, from the sources of what it reads."""
        merged = self.sources[step.reads[0]] if step.reads else {}
        if len(step.reads) > 1:
            merged = dict(merged)
            for read in step.reads[1:]:
                for value, touched in self.sources[read].items():
                    if touched > merged.get(value, -1):
                        merged[value] = touched
        if self.rules.is_gather[op]:
            picked, table = sum(self.size_bytes[i] for i in step.writes), self.sources[step.reads[0]]
            share = picked / max(1, self.size_bytes[step.reads[0]])
            return {value: int(share * touched) if value in table else touched for value, touched in merged.items()}
        if self.rules.reads_part[op]:
            written = sum(self.size_bytes[i] for i in step.writes)
            return {value: min(touched, written) for value, touched in merged.items()}
        return merged

    def _force(self, steps: Sequence[Step]) -> None:
        """Rules 1, 2, 4 to 7."""
        rules, shown = self.rules, list(range(len(self.size_bytes)))
        loaded = list(shown)
        late = self._read_late(steps)
        for step in steps:
            if rules.graph.loops:
                self._force_over_borders(step, shown)
            if not isinstance(step, Run):
                self.materialised.update(shown[i] for i in step.reads)
                self.materialised.update(step.writes)
                continue
            op = step.op
            if (entering := rules.fused_operand[op]) is not None:
                loaded[step.writes[0]] = loaded[step.reads[entering]]
            if rules.is_view_of[op]:
                shown[step.writes[0]] = shown[step.reads[0]]
                loaded[step.writes[0]] = loaded[step.reads[0]]
            elif rules.is_row[op]:
                instance = step.writes[0]
                folds = rules.folded_reductions if step.is_clone or instance in late else rules.folded_if_unread
                if op in folds and not (op in rules.separate_reductions and step.reads[0] in self.materialised):
                    self._folded.add(instance)
                else:
                    self.materialised.add(instance)
            elif rules.writes_memory[op] or (
                op in rules.stored_exponentials and (step.is_clone or not late.isdisjoint(step.writes))
            ):
                self.materialised.update(step.writes)
            needed = loaded if rules.is_dot[op] else shown
            for position in rules.needs_memory[op]:
                self.materialised.add(needed[step.reads[position]])

    def _force_over_borders(self, step: Step, shown: Sequence[int]) -> None:
        """Rule 7; what waits for all turns waits as it is read, what stands further out behind its views."""
        self.loop.update(dict.fromkeys(step.writes, step.loop))
        around = self.rules.graph.path(step.loop)
        for instance in step.reads:
            if self.loop.get(instance) != step.loop:
                inside = self.loop.get(instance) is None or self.loop.get(instance) in around
                self.materialised.add(shown[instance] if inside else instance)

    def _read_late(self, steps: Sequence[Step]) -> set[int]:
        """Instances of the forward pass that later kernels read, or compute from what they read."""
        is_late, writes_memory = self.rules.after_forward, self.rules.writes_memory
        late: set[int] = set()
        for step in reversed(steps):
            if isinstance(step, Run):
                passes_on = not writes_memory[step.op] and not late.isdisjoint(step.writes)
                if passes_on or step.is_clone or is_late[step.op]:
                    late.update(step.reads)
        return late

    def _kernels_reading(self, steps: Sequence[Step]) -> list[frozenset[int]]:
        """For each instance the kernels that read it if only what must be is in memory, up to `_MANY`.

        Of what is in memory nobody asks.
        """
        nothing: frozenset[int] = frozenset()
        materialised, is_gather = self.materialised, self.rules.is_gather
        kernels = [nothing] * len(self.size_bytes)
        for step in reversed(steps):
            ends = nothing
            for instance in step.writes:
                made = frozenset((instance,)) if instance in materialised else kernels[instance]
                ends = ends | made if ends else made
            picks = isinstance(step, Run) and is_gather[step.op]
            for instance in step.reads[1:] if picks else step.reads:  # of a table next to nothing is read
                if instance not in materialised and len(known := kernels[instance]) < _MANY:
                    kernels[instance] = known | ends if known else ends
        return kernels


def strip_views(graph: Graph, value: int) -> int:
    """The value that a chain of views shows, if nothing is repeated on the way; else the value itself."""
    shown = value
    while (op := graph.producer[shown]) is not None:
        if graph.ops[op].kind is not Kind.VIEW or len(graph.ops[op].reads) != 1:
            break
        shown = graph.ops[op].reads[0]
        if graph.values[shown].size_bytes != graph.values[value].size_bytes:
            return value
    return shown
