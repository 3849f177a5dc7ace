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
    """The instances of one schedule, asked for step by step; `per_row` grows with it (see `FusionAnalysis`)."""

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
        rules, reads = self._rules, [i for i in step.reads if i not in materialised]
        if step.op in rules.draws:
            self._bits.update(step.writes)
        elif step.op in rules.writes_memory and self._per_row.isdisjoint(step.writes):
            return ()
        elif bits := self._bits.intersection(reads):
            others = [i for i in step.reads if i not in bits and self._origin[i] not in self._derived]
            if not others:
                self._bits.update(i for i in step.writes if self._times_read[i] == 1)
                return ()
            self._masked.update((i, frozenset((i,))) for i in step.writes)
            return self._held.intersection(others)
        elif masked := frozenset[int]().union(*(self._masked.get(i, ()) for i in reads)):
            if self._holds(step, reads):
                self._held.update(step.writes)
                return masked
            self._masked.update(dict.fromkeys(step.writes, masked))
        elif self._holds(step, reads):
            self._held.update(step.writes)
        return ()

    def _holds(self, step: Run, reads: Sequence[int]) -> bool:
        """True if a step runs in kernels that hold rows."""
        return not (self._held.isdisjoint(reads) and self._per_row.isdisjoint((*reads, *step.writes)))
