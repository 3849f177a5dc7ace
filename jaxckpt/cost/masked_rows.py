"""Dropout beside a softmax: the values in memory because a kernel that holds rows draws no random bits.

A mask that one op reads is drawn in that op's kernel. In a backward pass this kernel stands in front of the one that
holds the rows of the softmax, and what is masked is in memory between the two. In a forward pass it stands behind, and
the softmax is in memory. A mask that several ops read is in memory by rule 3 of `fusion`, and any kernel can apply it.

Read after `fusion_rules`; `fusion_analysis` asks.
"""

from collections import Counter
from collections.abc import Iterable, Sequence, Set

from jaxckpt.cost.fusion_rules import FusionRules
from jaxckpt.schedule import Run, ScheduleStep
from jaxckpt.schedule.argument_derived import argument_derived_values


class MaskedRows:
    """The instances of one schedule, asked for step by step.

    `per_row` is `HeldRows.figures` of the analysis, to which the steps so far have added.
    """

    def __init__(self, rules: FusionRules, steps: Sequence[ScheduleStep], origin: Sequence[int], per_row: Set[int]):
        self._rules, self._origin, self._per_row = rules, origin, per_row
        self._times_read = Counter(instance for step in steps for instance in step.reads)
        self._derived = rules.graph.once(argument_derived_values)
        self._bits = set[int]()
        """Instances that are computed of random bits alone, for one reader; a mask of several is in memory."""
        self._held = set[int]()
        """Instances that kernels that hold rows compute."""
        self._masked: dict[int, frozenset[int]] = {}
        """For each instance that is computed of masked ones these, as they leave the kernel that draws."""

    def written(self, step: Run, materialised: Set[int]) -> Iterable[int]:
        """The instances that are in memory for a step, besides those that are so far."""
        # It runs for every step of every replay: most steps have nothing to do with rows or masks.
        rules, writes = self._rules, step.writes
        is_reduction = not self._per_row.isdisjoint(writes)
        if step.op in rules.draws:
            self._bits.update(writes)
            return ()
        if step.op in rules.writes_memory and not is_reduction:
            return ()
        read, held = step.reads, self._held
        if self._bits.isdisjoint(read) and held.isdisjoint(read) and self._masked.keys().isdisjoint(read):
            if is_reduction or not self._per_row.isdisjoint(read):
                held.update(writes)
            return ()
        reads = [i for i in step.reads if i not in materialised]
        is_rows = not (held.isdisjoint(reads) and self._per_row.isdisjoint(reads))
        if bits := self._bits.intersection(reads):
            others = [i for i in step.reads if i not in bits and self._origin[i] not in self._derived]
            if others:
                self._masked.update((i, frozenset((i,))) for i in writes)
                return held.intersection(others)
            self._bits.update(i for i in writes if self._times_read[i] == 1)
            return ()
        masked = frozenset[int]()
        for instance in reads:
            if instance in self._masked:
                masked |= self._masked[instance]
        if is_rows or is_reduction:
            held.update(writes)
            return masked
        if masked:
            self._masked.update(dict.fromkeys(writes, masked))
        return ()
