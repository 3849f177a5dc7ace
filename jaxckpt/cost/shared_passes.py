"""Loops over elements that share a kernel, as one pass over an array that all of them read.

XLA calls it sibling fusion, or multi-output fusion.

1. A loop over elements joins the last kernel that went over its largest operand, and reads that operand for free.
   - Both go over as many elements; a reduction goes over those of its operand. Reductions that share a kernel leave as
     many elements, and all reduce rows or all columns, at most `_COLUMN_SUMS` of them. A reduction that an earlier step
     has computed of the same operand (the mean, and again for the variance) costs nothing.
   - A loop joins no kernel over the result of a matrix product, or of a kernel that holds rows. XLA makes custom
     fusions of these kernels first, and merges no loops that read the result of one. It merges loops that read such a
     result behind a barrier.
2. A loop joins no kernel if it depends on a later kernel, or on a barrier behind that kernel. If the kernel is a
   clone's, and its results do not lead to the loop, the two share a kernel all the same: XLA merges loops that
   read one array and do not depend on each other, whatever the order in which they are written. The clone then runs
   where the loop does, and what reads its result runs later (`SharedPasses.runs_at`): a recomputed activation and the
   derivative of the activation are one kernel, and the cotangent that both products of a layer read lives until then.
   Operands that products compute on what they load are in no other kernel.
3. A loop does not join the kernel of a reduction whose result it reads: all of the reduction must be done before. It
   may join the kernel of a reduction over complete rows: that kernel holds the rows.
4. An update joins over any of its operands, which are all of one size: optimisers go over all parameters one after the
   other.
   No loop joins a kernel that transposes what it reads, and writes what the loop reads.
5. Loops of two bodies never join.
6. A loop that reads nothing (a dropout mask, drawn from a key) and the first loop that reads its result are one kernel.
7. A loop whose result a reduction reads joins another reader of its operand rather than what writes the operand, if
   both readers do not depend on each other. XLA merges the readers of an array before it merges one with what writes
   the array: `tanh` of a recomputed gelu is a kernel, the gelu and its derivative are the next one, with the gradient
   of the bias.

Read after `kernel_chains` and `rates`; used by `kernels`.
"""

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from jaxckpt.cost.fusion_analysis import FusionAnalysis, SourceBytes, reduction_operands
from jaxckpt.cost.kernel_chains import KernelChains
from jaxckpt.cost.rates import Rates
from jaxckpt.ir import Graph, Kind, Op, Phase
from jaxckpt.schedule import Barrier, Move, Run, ScheduleStep
from jaxckpt.schedule.layout import is_matrix_product

_POSTPONED_STEPS = 48
"""Steps over which a clone is postponed (rule 2). With 12 the mean error of seconds is 5.6%, with 48 and 192 it is 5.4%
(`python -m benchmarks.constants`)."""
_COLUMN_SUMS = 2
"""Sums over columns in one kernel. Each has a tile of 32 x 129 elements in the shared memory of a block: for float32
16,512 of its 49,152 bytes."""
_PASSES = 4
"""The last kernels over a buffer that a loop can join. 1, 2, 4 and 8 predict the same to 0.03% (`python -m
benchmarks.constants`). None of those steps has batch normalisation, whose sums alternate between kernels."""


class _Extent(NamedTuple):
    """The elements that a loop goes over, and those that a reduction leaves, of rows or of columns."""

    elements: int
    left: int | None = None
    of_rows: bool = False


@dataclass(slots=True)
class _SharedKernel:
    """A kernel of loops over elements.

    Attributes:
      steps: The steps that run in it.
      written: Buffers that they write.
      reduced: Those of the buffers that reductions write.
      traffic_s: Seconds of its traffic.
      arithmetic_s: Seconds of its arithmetic.
      transposes: True if what it writes has another layout than what it reads.
      is_launched: True once the launch is counted, of this kernel or of one whose loops all run in this one.
    """

    steps: list[int] = field(default_factory=list)
    written: list[int] = field(default_factory=list)
    reduced: set[int] = field(default_factory=set)
    traffic_s: float = 0.0
    arithmetic_s: float = 0.0
    transposes: bool = False
    is_launched: bool = False


class SharedPasses:
    """The kernels of one schedule that are loops over elements, in the order of its steps.

    Attributes:
      chains: What leads to each step in its kernel.
      in_tuples: Buffers that a kernel returns together with others.
      together: For each step whose loop joins a kernel the buffers that this kernel has by then.
      runs_at: For each step whose kernel runs later than its place in the schedule the step at which that kernel runs:
        the step shares a kernel with a later loop, or depends on a step that does.
    """

    def __init__(self, steps: Sequence[ScheduleStep], fusion: FusionAnalysis, rates: Rates):
        self._steps = steps
        self._fusion = fusion
        self._rates = rates
        self.chains = KernelChains(steps, fusion)
        self._passes: defaultdict[int, list[int]] = defaultdict(list)
        """For each buffer the kernels of the last loops that read or wrote it, the very last one at the end."""
        self._ready: dict[int, int] = {}
        """For each buffer the kernel that writes it, or the last barrier that it passed."""
        self._last_loop: dict[int, int] = {}
        """For each buffer the step of the last loop that read or wrote it."""
        self.in_tuples: set[int] = set()
        self.together: dict[int, tuple[int, ...]] = {}
        self.runs_at: dict[int, int] = {}
        self._kernels: defaultdict[int, _SharedKernel] = defaultdict(_SharedKernel)
        """By the steps that start them."""
        self._of_custom_fusions: set[int] = set()
        """Results of matrix products, and of kernels that hold rows, that no barrier has passed on."""
        self._first: dict[Hashable, int] = {}
        """The first step of each reduction: what it computes, of which instances."""
        self._from_nothing: dict[int, int] = {}
        """For each buffer that a loop without operands writes the kernel of this loop, until another loop joins it."""

    def enter_loop(self) -> None:
        """The steps that follow stand in another loop's body."""
        self._passes.clear()
        self._first.clear()
        self._from_nothing.clear()

    def pass_barrier(self, at: int, sources: SourceBytes) -> None:
        """Buffers pass a barrier: through them, loops behind the barrier join no kernel before it."""
        for source in sources:
            self._passes.pop(source, None)
            self._from_nothing.pop(source, None)
            self._of_custom_fusions.discard(source)
            self._ready[source] = at

    def write(self, at: int, kernel: int, op: Op, written: Sequence[int]) -> None:
        """A step writes buffers by a kernel, a loop or not."""
        shared = self._kernels[kernel]
        shared.is_launched = True
        if shared.written:
            self.together[at] = tuple(shared.written)
        shared.steps.append(at)
        shared.written.extend(written)
        if len(shared.written) > 1:
            self.in_tuples.update(shared.written)
        self._ready.update(dict.fromkeys(written, kernel))
        if op.kind is Kind.REDUCTION:
            shared.reduced.update(written)
        step = self._steps[at]
        if is_matrix_product(op) or (isinstance(step, Run) and self._fusion.holds_rows(step)):
            self._of_custom_fusions.update(written)

    def join(
        self,
        at: int,
        op: Op,
        reads: SourceBytes,
        written: Sequence[int],
        traffic_bytes: int,
        arithmetic_s: float,
        *,
        transposes: bool = False,
    ) -> tuple[int, float]:
        """The kernel in which a loop runs, as the step that starts it, and the seconds that the loop adds to it.

        `reads` has the bytes that the loop reads of each buffer. A loop that can join no kernel starts one. A loop
        `transposes` if it writes another layout than it reads.
        """
        kernel = self._kernel_of(at, op, reads, written)
        self._postpone_others(kernel, at, reads)
        if not reads:
            self._from_nothing.update(dict.fromkeys(written, kernel))
        shared = self._kernels[kernel]
        traffic_bytes -= sum([size for source, size in reads.items() if kernel in self._passes[source]])
        before_s = max(shared.traffic_s, shared.arithmetic_s)
        shared.traffic_s += traffic_bytes / self._rates.memory_bandwidth_bytes_per_s
        shared.arithmetic_s += arithmetic_s
        shared.transposes |= transposes
        for buffer in (*reads, *written):
            self._pass(buffer, kernel)
            self._last_loop[buffer] = at
        launch_s = 0.0 if shared.is_launched else self._rates.launch_s
        shared.is_launched = True
        return kernel, max(shared.traffic_s, shared.arithmetic_s) - before_s + launch_s

    def _kernel_of(self, at: int, op: Op, reads: SourceBytes, written: Sequence[int]) -> int:
        ready = max([self._ready.get(source, -1) for source in reads], default=-1)
        siblings = (sibling for instance in written for sibling in self._siblings.get(instance, ()))
        if (kernel := next((self._ready[sibling] for sibling in siblings if sibling in self._ready), None)) is not None:
            return kernel if kernel >= ready else at
        joined = [self._from_nothing.pop(source) for source in reads if source in self._from_nothing]
        if joined:
            return joined[-1]
        first = self._first.setdefault(self._reduction(at), at) if op.kind is Kind.REDUCTION else at
        if first != at:
            return self._ready.get(self._steps[first].writes[0], at)
        largest_bytes = 0 if op.phase is Phase.UPDATE else max(reads.values(), default=0)
        largest = (source for source, size in reads.items() if size >= largest_bytes)
        over = [source for source in largest if source not in self._of_custom_fusions]
        passes = {kernel for source in over for kernel in self._passes[source] if kernel >= ready}  # rule 2
        writing = passes.intersection([self._ready.get(source) for source in over])
        if writing and not self._reduction_operands.isdisjoint(written):  # rule 7
            passes.difference_update([kernel for kernel in writing if self._has_other_reader(kernel, at)])
        return max([kernel for kernel in passes if self._can_join(kernel, at, op, reads)], default=at)

    def _pass(self, buffer: int, kernel: int) -> None:
        """A kernel goes over a buffer."""
        passes = self._passes[buffer]
        if not passes or passes[-1] != kernel:
            passes.append(kernel)
            del passes[:-_PASSES]

    def _can_join(self, kernel: int, at: int, op: Op, reads: SourceBytes) -> bool:
        """True if a loop can run in a kernel that goes over one of its operands (rules 1 and 3)."""
        shared, nests = self._kernels[kernel], op.id in self._fusion.rules.rows.nested_reductions
        if not nests and not shared.reduced.isdisjoint(reads):
            return False
        if shared.transposes and not reads.keys().isdisjoint(shared.written):
            return False
        return self._is_one_loop((*shared.steps, at))

    def _is_one_loop(self, loops: Iterable[int]) -> bool:
        """True if one kernel can run the loops of some steps (rule 1)."""
        extents = self._fusion.rules.graph.once(_extents)
        extent_of = {loop: extents[step.op] for loop in loops if isinstance(step := self._steps[loop], Run)}
        reductions = [loop for loop, extent in extent_of.items() if extent.left is not None]
        reduced = {extent_of[loop] for loop in reductions}
        if len({extent.elements for extent in extent_of.values()}) > 1 or len(reduced) > 1:
            return False
        return any(extent.of_rows for extent in reduced) or len(set(map(self._reduction, reductions))) <= _COLUMN_SUMS

    def _reduction(self, at: int) -> Hashable:
        """The identity of a reduction: its op and the instances that it reads."""
        step = self._steps[at]
        assert isinstance(step, Run)
        op = self._fusion.rules.graph.ops[step.op]
        return op.primitive, op.detail, step.reads

    def _postpone_others(self, kernel: int, at: int, reads: SourceBytes) -> None:
        """Lets earlier clones over the largest operands of a step run in its kernel (rule 2).

        All loops of their kernel, or the last one alone, where the results of the others lead to the step. Only clones:
        with all loops the predictions of the battery's steps came no closer to the compiled programs.
        """
        largest_bytes = max(reads.values(), default=0)
        for source, size_bytes in reads.items():
            other = max([each for each in self._passes[source] if each < kernel], default=-1)
            if other < max(0, at - _POSTPONED_STEPS) or size_bytes < largest_bytes:
                continue
            shared, last = self._kernels[other], self._last_loop[source]
            runs_elsewhere = last not in shared.steps
            if runs_elsewhere or self.chains.of(last).operands.isdisjoint(self.chains.of(at).operands):
                continue
            is_apart = last != shared.steps[0] and source not in shared.written
            if self._postpone(shared, shared.steps, kernel, at):
                for passes in self._passes.values():
                    passes[:] = [kernel if each == other else each for each in passes]
            elif is_apart:
                self._postpone(shared, [last], kernel, at)

    @cached_property
    def _siblings(self) -> Mapping[int, Collection[int]]:
        """For each instance of a sibling kernel what all of these kernels write (`FusionAnalysis.siblings`)."""
        return {instance: kernels for kernels in self._fusion.siblings.values() for instance in kernels}

    def _has_other_reader(self, kernel: int, at: int) -> bool:
        """True if the last of several loops of a kernel is a clone that a step does not depend on."""
        *writing, last = self._kernels[kernel].steps
        step = self._steps[last]
        return bool(writing) and isinstance(step, Run) and step.is_clone and self._behind([last], at) is not None

    @cached_property
    def _reduction_operands(self) -> frozenset[int]:
        return reduction_operands(self._fusion.rules.graph, self._steps)

    def _behind(self, loops: Sequence[int], at: int) -> tuple[list[int], set[int]] | None:
        """The steps before a step that need results of some loops, and what these and the loops write.

        None if the step needs them itself, or a copy to the host does.
        """
        steps = self._steps
        dependent, behind = {instance for loop in loops for instance in steps[loop].writes}, list[int]()
        for between in range(min(loops) + 1, at):
            step = steps[between]
            awaited = step.trigger if isinstance(step, Barrier) else step.after if isinstance(step, Run) else None
            if between not in loops and (awaited in dependent or not dependent.isdisjoint(step.reads)):
                if isinstance(step, Move):
                    return None
                dependent.update(step.writes)
                behind.append(between)
        return (behind, dependent) if dependent.isdisjoint(steps[at].reads) else None

    def _postpone(self, shared: _SharedKernel, loops: Sequence[int], kernel: int, at: int) -> bool:
        """Lets loops of a kernel run in a later one that a step is in, unless what they write leads to this step."""
        steps = self._steps
        are_clones = all(isinstance(step := steps[loop], Run) and step.is_clone for loop in loops)
        if not are_clones or any(map(self.chains.is_loaded, loops)):
            return False
        joined = self._kernels[kernel].steps if kernel in self._kernels else []
        if not self._is_one_loop((*joined, *loops, at)):
            return False
        if (found := self._behind(loops, at)) is None:
            return False
        behind, dependent = found
        results = (instance for loop in loops for instance in steps[loop].writes)
        written = [instance for instance in results if instance in shared.written]  # without what nothing reads
        runs_behind = min(kernel + 1, len(steps) - 1)
        self.runs_at.update(dict.fromkeys(behind, runs_behind))
        self.runs_at.update(dict.fromkeys(loops, kernel))
        self._ready.update(dict.fromkeys(dependent & self._ready.keys(), runs_behind))
        self._ready.update(dict.fromkeys(written, kernel))
        later = self._kernels[kernel]
        later.steps += loops
        later.written += written
        later.reduced |= shared.reduced.intersection(written)
        shared.steps = [loop for loop in shared.steps if loop not in loops]
        later.is_launched = later.is_launched or not shared.steps
        shared.written = [instance for instance in shared.written if instance not in written]
        if len(shared.written) == 1:
            self.in_tuples.difference_update(shared.written)
        for loop in loops:
            self.together.pop(loop, None)
        return True


def _extents(graph: Graph) -> tuple[_Extent, ...]:
    """The extent of each op's loop."""
    return tuple(_extent(graph, op) for op in graph.ops)


def _extent(graph: Graph, op: Op) -> _Extent:
    written = max(map(graph.elements, op.writes), default=0)
    if op.kind is not Kind.REDUCTION or not op.reads:
        return _Extent(written)
    largest = max(op.reads, key=graph.elements)
    operand, left = graph.values[largest].shape, graph.values[op.writes[0]].shape
    return _Extent(graph.elements(largest), written, operand[: len(left)] == left)
