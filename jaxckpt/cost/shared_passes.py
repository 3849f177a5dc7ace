"""Loops over elements that share a kernel, as one pass over an array that all of them read.

XLA calls it sibling fusion, or multi-output fusion.

1. A loop over elements joins the last kernel that went over its largest operand, and reads that operand for free.
2. It joins nothing where it needs what a kernel after that one writes, or a barrier in between hands on. If the kernel
   is a clone's, and its results do not lead to the loop, the two share a kernel all the same: XLA merges loops that
   read one array and do not depend on each other, whatever the order in which they are written. The clone then runs
   where the loop does, and what reads its result runs later (`SharedPasses.runs_at`): a recomputed activation and the
   derivative of the activation are one kernel, and the cotangent that both products of a layer read lives until then.
   Operands that products compute on what they load are in no other kernel.
3. It does not join the kernel of a reduction whose result it reads: all of the reduction must be done before. A
   reduction over complete rows does: a kernel holds the rows.
4. It does not join a kernel more than `_ONE_PASS` steps back. An update joins at any distance, and over any of its
   operands, which are all of one size: optimisers go over all parameters one after the other.
5. Loops of two bodies never join.
6. A loop that reads nothing (a dropout mask, drawn from a key) and the first loop that reads its result are one kernel.

Read after `fusion_analysis` and `rates`; `kernels` asks.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from jaxckpt.cost.fusion_analysis import FusionAnalysis, SourceBytes
from jaxckpt.cost.rates import Rates
from jaxckpt.ir import Kind, Op, Phase
from jaxckpt.schedule import Barrier, Move, Run, ScheduleStep

_ONE_PASS = 48
"""Steps within which loops over the same array share one pass over it (the maximum and the sum of a softmax, the mean
and the variance of normalised rows). The median error of seconds is 4.7% with 12, and 4.0% with 24, 48 and 96; the mean
one 5.9%, 6.3%, 6.5% and 6.5% (`python -m benchmarks.constants`)."""


@dataclass(slots=True)
class _SharedKernel:
    """A kernel, by the steps that run in it, what they write, and the seconds of its traffic and its arithmetic."""

    steps: list[int] = field(default_factory=list)
    written: list[int] = field(default_factory=list)
    traffic_s: float = 0.0
    arithmetic_s: float = 0.0


class _Chain(NamedTuple):
    """The ops that lead to a result in one kernel, and the instances that they read from memory.

    Behind each barrier a buffer is another instance.
    """

    operands: set[int]
    ops: set[int]


class SharedPasses:
    """The kernels of one schedule that are loops over elements, in the order of its steps.

    Attributes:
      in_tuples: Buffers that a kernel returns together with others.
      together: For each step whose loop joins a kernel the buffers that this kernel has by then.
      runs_at: The step at which a step runs, for each that runs later than it stands: it shares a kernel with a later
        loop, or depends on a step that does.
    """

    def __init__(self, steps: Sequence[ScheduleStep], fusion: FusionAnalysis, rates: Rates):
        self._steps = steps
        self._fusion = fusion
        self._rates = rates
        self._last_pass: dict[int, int] = {}
        """For each buffer the kernel of the last loop that read or wrote it."""
        self._ready: dict[int, int] = {}
        """For each buffer the kernel that writes it, or the last barrier that it passed."""
        self._last_loop: dict[int, int] = {}
        """For each buffer the step of the last loop that read or wrote it."""
        self.in_tuples: set[int] = set()
        self.together: dict[int, tuple[int, ...]] = {}
        self.runs_at: dict[int, int] = {}
        self._kernels: defaultdict[int, _SharedKernel] = defaultdict(_SharedKernel)
        """By the steps that start them."""
        self._reduced: set[int] = set()
        """Buffers that reductions write."""
        self._from_nothing: dict[int, int] = {}
        """For each buffer that a loop without operands writes the kernel of this loop, until another loop joins it."""

    def enter_loop(self) -> None:
        """The steps that follow stand in another loop's body."""
        self._last_pass.clear()
        self._from_nothing.clear()

    def pass_barrier(self, at: int, sources: SourceBytes) -> None:
        """Buffers pass a barrier: what is behind it joins no kernel before it over them."""
        for source in sources:
            self._last_pass.pop(source, None)
            self._from_nothing.pop(source, None)
            self._ready[source] = at

    def write(self, at: int, kernel: int, op: Op, written: Iterable[int]) -> None:
        """A step writes buffers by a kernel, a loop or not."""
        shared = self._kernels[kernel]
        if shared.written:
            self.together[at] = tuple(shared.written)
        shared.steps.append(at)
        shared.written.extend(written)
        if len(shared.written) > 1:
            self.in_tuples.update(shared.written)
        for instance in written:
            self._ready[instance] = kernel
            if op.kind is Kind.REDUCTION:
                self._reduced.add(instance)

    def join(
        self,
        at: int,
        op: Op,
        reads: SourceBytes,
        written: Sequence[int],
        traffic_bytes: int,
        arithmetic_s: float,
    ) -> tuple[int, float]:
        """The kernel in which a loop runs, as the step that starts it, and the seconds that the loop adds to it.

        It reads so many bytes of each buffer, and joins a sibling kernel that runs already.
        """
        kernel = self._kernel_of(at, op, reads, written)
        self._postpone_others(kernel, at, reads)
        if not reads:
            self._from_nothing.update(dict.fromkeys(written, kernel))
        is_new, shared = kernel not in self._kernels, self._kernels[kernel]
        traffic_bytes -= sum([size for source, size in reads.items() if self._last_pass.get(source) == kernel])
        before_s = max(shared.traffic_s, shared.arithmetic_s)
        shared.traffic_s += traffic_bytes / self._rates.memory_bandwidth_bytes_per_s
        shared.arithmetic_s += arithmetic_s
        for buffer in (*reads, *written):
            self._last_pass[buffer], self._last_loop[buffer] = kernel, at
        return kernel, max(shared.traffic_s, shared.arithmetic_s) - before_s + is_new * self._rates.launch_s

    def _kernel_of(self, at: int, op: Op, reads: SourceBytes, written: Sequence[int]) -> int:
        siblings = (sibling for instance in written for sibling in self._siblings.get(instance, ()))
        if (kernel := next((self._ready[sibling] for sibling in siblings if sibling in self._ready), None)) is not None:
            return self._in_order(kernel, at, reads)
        joined = [self._from_nothing.pop(source) for source in reads if source in self._from_nothing]
        if joined:
            return joined[-1]
        kernel = self._last_shared(op, reads)
        if kernel is None or (at - kernel > _ONE_PASS and op.phase is not Phase.UPDATE):
            return at
        nests = op.id in self._fusion.rules.rows.nested_reductions
        if not nests and any(s in self._reduced and self._ready[s] == kernel for s in reads):
            return at
        return self._in_order(kernel, at, reads)

    def _in_order(self, kernel: int, at: int, reads: SourceBytes) -> int:
        """The kernel, or this step, if the loop there needs what a kernel after that one makes (rule 2)."""
        return at if max([self._ready.get(source, -1) for source in reads]) > kernel else kernel

    def _postpone_others(self, kernel: int, at: int, reads: SourceBytes) -> None:
        """Lets earlier clones over the largest operands of a step run in its kernel (rule 2).

        All loops of their kernel, or the last one alone, where the results of the others lead to the step. Only clones:
        with all loops the predictions of the battery's steps came no closer to the compiled programs.
        """
        largest_bytes, last_pass = max(reads.values(), default=0), self._last_pass
        for source, size_bytes in reads.items():
            other = last_pass.get(source)
            if other is None or size_bytes < largest_bytes or not at - _ONE_PASS <= other < kernel:
                continue
            shared, last = self._kernels[other], self._last_loop[source]
            runs_elsewhere = last not in shared.steps
            if runs_elsewhere or self._chain(last).operands.isdisjoint(self._chain(at).operands):
                continue
            is_apart = last != shared.steps[0] and source not in shared.written
            if self._postpone(shared, shared.steps, kernel, at):
                last_pass.update({buffer: kernel for buffer, before in last_pass.items() if before == other})
            elif is_apart:
                self._postpone(shared, [last], kernel, at)

    @cached_property
    def _siblings(self) -> Mapping[int, Collection[int]]:
        """For each instance of a sibling kernel what all of these kernels write (`FusionAnalysis.siblings`)."""
        return {instance: kernels for kernels in self._fusion.siblings.values() for instance in kernels}

    @cached_property
    def _arguments(self) -> frozenset[int]:
        return frozenset(self._fusion.rules.graph.inputs)

    @cached_property
    def _step_of(self) -> dict[int, int]:
        """For each instance the step that writes it."""
        return {instance: at for at, step in enumerate(self._steps) for instance in step.writes}

    def _chain(self, at: int) -> _Chain:
        """The ops that run in the kernel of a step, and what they read."""
        found, ops, pending = set[int](), set[int](), [at]
        while pending:
            step = self._steps[pending.pop()]
            assert isinstance(step, Run), "others write buffers"
            ops.add(step.op)
            for instance in step.reads:
                before = self._step_of.get(instance)
                if before is None or instance in self._fusion.materialised or not isinstance(self._steps[before], Run):
                    found.add(instance)
                else:
                    pending.append(before)
        return _Chain(found, ops)

    def is_loaded(self, at: int) -> bool:
        """True for a loop that products compute on what they load: cheap ops of one array, as it lies, and arguments.

        XLA puts these into the kernels of products before it merges loops.
        """
        step, fusion, graph = self._steps[at], self._fusion, self._fusion.rules.graph
        if not (isinstance(step, Run) and step.op in fusion.rules.products.only_for_products):
            return False
        operands, ops = self._chain(at)
        arrays = [instance for instance in operands if not self._arguments.issuperset(fusion.sources[instance])]
        is_cheap = fusion.rules.expensive.isdisjoint(ops) and all(graph.ops[op].primitive != "transpose" for op in ops)
        return is_cheap and len(arrays) == 1

    def _postpone(self, shared: _SharedKernel, loops: Sequence[int], kernel: int, at: int) -> bool:
        """Lets loops of a kernel run in a later one that a step is in, unless what they write leads to this step."""
        steps = self._steps
        are_clones = all(isinstance(step := steps[loop], Run) and step.is_clone for loop in loops)
        if not are_clones or any(map(self.is_loaded, loops)):
            return False
        results = [instance for loop in loops for instance in steps[loop].writes]
        written = [instance for instance in results if instance in shared.written]  # without what nothing reads
        dependent, behind = set(results), list[int]()
        for between in range(min(loops) + 1, at):
            step = steps[between]
            awaited = step.trigger if isinstance(step, Barrier) else step.after if isinstance(step, Run) else None
            if between not in loops and (awaited in dependent or not dependent.isdisjoint(step.reads)):
                if isinstance(step, Move):
                    return False
                dependent.update(step.writes)
                behind.append(between)
        if not dependent.isdisjoint(steps[at].reads):
            return False
        runs_behind = min(kernel + 1, len(steps) - 1)
        self.runs_at.update(dict.fromkeys(behind, runs_behind))
        self.runs_at.update(dict.fromkeys(loops, kernel))
        self._ready.update(dict.fromkeys(dependent & self._ready.keys(), runs_behind))
        self._ready.update(dict.fromkeys(written, kernel))
        later = self._kernels[kernel]
        later.steps += loops
        later.written += written
        shared.steps = [loop for loop in shared.steps if loop not in loops]
        shared.written = [instance for instance in shared.written if instance not in written]
        if len(shared.written) == 1:
            self.in_tuples.difference_update(shared.written)
        for loop in loops:
            self.together.pop(loop, None)
        return True

    def _last_shared(self, op: Op, reads: SourceBytes) -> int | None:
        """The last kernel that went over the largest of some operands; of an update, over any."""
        largest_bytes = 0 if op.phase is Phase.UPDATE else max(reads.values(), default=0)
        last = self._last_pass
        return max([last[s] for s, size in reads.items() if size >= largest_bytes and s in last], default=None)
