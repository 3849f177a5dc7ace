"""Sources that a kernel reads in any case: to compute a value of these again, the kernel reads nothing more.

XLA prices a fusion by what the fused kernel reads. It counts an array once that the kernel reads both for the producer
and for its own work at the same index (`GetCommonUtilization` of its performance model). So elementwise ops alone must
lead to the array on both ways: a reduction, a gather or a concatenation reads it at another index.

Read after `fusion_rules`; `fusion_analysis` asks (rule 3).
"""

from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from functools import cached_property
from typing import NamedTuple

from jaxckpt.ir import Graph, Kind
from jaxckpt.schedule import Run, ScheduleStep

_MOVES_ELEMENTS = frozenset({"concatenate", "stack", "pad"})
"""Ops of the elementwise kind that read each element at another index than they write it."""


class _Reached(NamedTuple):
    """Instances that elementwise ops lead to from one instance.

    Attributes:
      sources: Those in memory.
      ends: Those not in memory that ops of other kinds read.
      has_other: True if an instance that was asked for is among those reached; nothing is looked up behind it.
    """

    sources: set[int]
    ends: set[int]
    has_other: bool


class SharedSources:
    """Bytes that kernels of one schedule read in any case.

    Args:
      graph: The graph of the schedule.
      steps: The steps of the schedule.
      materialised: Instances in memory; may grow between questions.
    """

    def __init__(self, graph: Graph, steps: Sequence[ScheduleStep], materialised: Set[int]):
        self._ops = graph.ops
        self._steps = steps
        self._materialised = materialised

    @cached_property
    def _writers(self) -> Mapping[int, Run]:
        """The step that writes each instance; built for the first question, since many schedules have none."""
        return {i: step for step in self._steps if isinstance(step, Run) for i in step.writes}

    def read_anyway_bytes(self, instance: int, kernels: Collection[int], sources: Mapping[int, int]) -> int:
        """Bytes of an instance's sources that kernels read in any case, added up over kernels.

        Args:
          instance: An instance that is not in memory.
          kernels: Kernels that read the instance, as what they write.
          sources: What the instance is computed from, each source with the bytes that are read.
        """
        own = sources.keys() & self._reached(instance, None).sources
        if not own:
            return 0
        shared = (own.intersection(self._other_reads(kernel, instance)) for kernel in kernels if kernel != instance)
        return sum(sources[source] for each in shared for source in each)

    def _other_reads(self, kernel: int, instance: int) -> Iterator[int]:
        """Instances in memory that a kernel reads where it needs an instance, without those read for that instance."""
        pending, seen = [kernel], {kernel}
        while pending:
            reached = self._reached(pending.pop(), instance)
            if reached.has_other:
                yield from reached.sources
            pending.extend(reached.ends - seen)
            seen |= reached.ends

    def _reached(self, root: int, other: int | None) -> _Reached:
        """Instances that elementwise ops lead to from a root; `other` is one behind which nothing is looked up."""
        sources, ends, seen, pending = set[int](), set[int](), {root}, [root]
        while pending:
            step = self._writers.get(pending.pop())
            if step is None:
                continue
            op = self._ops[step.op]
            if op.kind is not Kind.ELEMENTWISE or op.primitive in _MOVES_ELEMENTS:
                ends.update(i for i in step.reads if i != other and i not in self._materialised)
                continue
            for read in step.reads:
                if read in self._materialised:
                    sources.add(read)
                elif read not in seen:
                    seen.add(read)
                    if read != other:
                        pending.append(read)
        return _Reached(sources, ends, other in seen)
