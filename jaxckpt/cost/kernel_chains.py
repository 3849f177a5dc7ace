"""The chain of ops that one kernel computes on the way to a step, and what the chain reads from memory.

Read after `fusion_analysis`; used by `shared_passes` and `kernels`.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from jaxckpt.cost.fusion_analysis import FusionAnalysis
from jaxckpt.schedule import Run, ScheduleStep


class Chain(NamedTuple):
    """The ops that lead to a result in one kernel, and the instances that they read from memory.

    Behind each barrier a buffer is another instance.
    """

    operands: set[int]
    ops: set[int]


class KernelChains:
    """The chain of each step of a schedule whose results `FusionAnalysis.run` has placed."""

    def __init__(self, steps: Sequence[ScheduleStep], fusion: FusionAnalysis):
        self._steps, self._fusion = steps, fusion
        self._known: dict[int, Chain] = {}

    def of(self, at: int) -> Chain:
        """The ops that run in the kernel of a step, and what they read."""
        if at not in self._known:
            self._known[at] = self._chain(at)
        return self._known[at]

    def is_loaded(self, at: int) -> bool:
        """True for a loop that products compute on what they load: cheap ops of one array, as it lies, and arguments.

        XLA puts these into the kernels of products before it merges loops.
        """
        step, fusion, graph = self._steps[at], self._fusion, self._fusion.rules.graph
        if not (isinstance(step, Run) and step.op in fusion.rules.products.only_for_products):
            return False
        operands, ops = self.of(at)
        arrays = [instance for instance in operands if not self._arguments.issuperset(fusion.sources[instance])]
        expensive = fusion.rules.storing.expensive.keys()
        is_cheap = expensive.isdisjoint(ops) and all(graph.ops[op].primitive != "transpose" for op in ops)
        return is_cheap and len(arrays) == 1

    def _chain(self, at: int) -> Chain:
        operands, ops, pending, seen = set[int](), set[int](), [at], {at}
        while pending:
            step = self._steps[pending.pop()]
            assert isinstance(step, Run), "others write buffers"
            ops.add(step.op)
            for instance in step.reads:
                before = self._step_of.get(instance)
                if before is None or instance in self._fusion.materialised or not isinstance(self._steps[before], Run):
                    operands.add(instance)
                elif before not in seen:  # two ops of a chain may read a third: without this, ways double with each
                    seen.add(before)
                    pending.append(before)
        return Chain(operands, ops)

    @cached_property
    def _step_of(self) -> dict[int, int]:
        """For each instance the step that writes it."""
        return {instance: at for at, step in enumerate(self._steps) for instance in step.writes}

    @cached_property
    def _arguments(self) -> frozenset[int]:
        graph = self._fusion.rules.graph
        return frozenset((*graph.inputs, *graph.constants))
