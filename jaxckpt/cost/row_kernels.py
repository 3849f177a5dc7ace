"""Values that are in memory because of what a kernel that holds rows cannot do (rule 5 of `fusion`).

XLA makes such a kernel of tiles of complete rows. It draws no random bits, and joins nothing and slices nothing whose
place is computed: what those ops write is in memory if such a kernel reads it, however many elementwise ops are in
between. What such a kernel writes is in memory if one of those ops reads it.

A mask that several ops read is in memory by rule 3 of `fusion`, and any kernel can apply it. A mask that one op reads
is drawn in that op's kernel. In a backward pass this kernel stands in front of the one that holds the rows of a
softmax, and what is masked is in memory between the two. In a forward pass it stands behind, and the softmax is in
memory.

A kernel can take a part of each row that it holds. Where several kernels read parts, rows end with the last op that
reads a figure of each row: normalised rows that are split into gates are in memory, if a backward pass reads them too.

Read after `fusion_rules`; `fusion_analysis` asks.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set

from jaxckpt.cost.fusion_rules import FusionRules
from jaxckpt.schedule import Run, ScheduleStep
from jaxckpt.schedule.argument_derived import argument_derived_values


class RowKernels:
    """The instances of one schedule, asked for step by step.

    `per_row` is `HeldRows.figures` of the analysis, and `loop_of` says in which loop's body each instance is written;
    the steps so far have added to both. `loop_of` is None where there are no loops.

    Attributes:
      cut: Instances with which rows end, and of which others read parts of rows.
    """

    def __init__(
        self,
        rules: FusionRules,
        steps: Sequence[ScheduleStep],
        origin: Sequence[int],
        per_row: Set[int],
        loop_of: Mapping[int, int | None] | None,
    ):
        self.cut = set[int]()
        self._rules, self._origin, self._per_row, self._loop_of = rules, origin, per_row, loop_of
        self._times_read = Counter(instance for step in steps for instance in step.reads) if rules.draws else {}
        self._derived = rules.graph.once(argument_derived_values)
        self._bits = set[int]()
        """Instances that are computed of random bits alone, for one reader; a mask of several is in memory."""
        self._held: dict[int, int] = {}
        """For each instance that kernels that hold rows compute the one before it that last read a figure of a row."""
        self._foreign: dict[int, frozenset[int]] = {}
        """For each instance that is computed of what no such kernel computes the latter, as they leave their kernel."""

    def written(self, step: Run, materialised: Set[int]) -> Iterable[int]:
        """The instances that are in memory for a step, besides those that are so far."""
        # It runs for every step of every replay: most steps have nothing to do with rows or masks.
        rules, writes, read, held = self._rules, step.writes, step.reads, self._held
        is_reduction = not self._per_row.isdisjoint(writes)
        if step.op in rules.draws:
            self._bits.update(writes)
            return ()
        if step.op in rules.rows.cuts:
            self.cut.update(held[i] for i in read if i in held)
        if step.op in rules.rows.foreign:
            self._foreign.update((i, frozenset((i,))) for i in writes)
            return held.keys() & read
        if step.op in rules.writes_memory and not is_reduction:
            return ()
        reads_figures = is_reduction or not self._per_row.isdisjoint(read)
        is_apart = held.keys().isdisjoint(read) and self._foreign.keys().isdisjoint(read)
        if is_apart and self._bits.isdisjoint(read) and self._loop_of is None:
            if reads_figures:
                held.update(dict.fromkeys(writes, writes[0]))
            return ()
        reads = [i for i in read if i not in materialised]
        if step.op not in rules.rows.row_reductions and self._reads_stack(step):
            self._foreign.update((i, frozenset((i,))) for i in writes)
            return held.keys() & read
        if bits := self._bits.intersection(reads):
            others = [i for i in read if i not in bits and self._origin[i] not in self._derived]
            if others:
                self._foreign.update((i, frozenset((i,))) for i in writes)
                return held.keys() & others
            self._bits.update(i for i in writes if self._times_read[i] == 1)
            return ()
        foreign = frozenset[int]()
        for instance in reads:
            if instance in self._foreign:
                foreign |= self._foreign[instance]
        ends = {held[i] for i in reads if i in held}
        if ends or reads_figures:
            end = writes[0] if reads_figures or len(ends) > 1 else ends.pop()
            held.update(dict.fromkeys(writes, end))
            return foreign
        if foreign:
            self._foreign.update(dict.fromkeys(writes, foreign))
        return ()

    def _reads_stack(self, step: Run) -> bool:
        """True if a step reads an iteration's part of what another loop wrote."""
        loop_of = self._loop_of
        return loop_of is not None and any(loop_of.get(i, step.loop) not in (step.loop, None) for i in step.reads)
