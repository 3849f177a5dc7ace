"""Loops over the same array that a compiler runs as one kernel: sibling fusion, also called multi-output fusion.

1. A loop over elements joins the last kernel that went over its largest operand, and reads that operand for free.
2. It joins nothing where it needs what a kernel after that one writes, or a barrier in between hands on.
3. It does not join the kernel of a reduction whose result it reads: all of the reduction must be done before. Another
   reduction does, over axes that lie together: compilers nest it.
4. It does not join a kernel more than `_ONE_PASS` steps back. An update joins at any distance, and over any of its
   operands, which are all of one size: optimisers go over all parameters one after the other.
5. Loops of two bodies never join.

Read after `rates`; `kernels` asks.
"""

from collections.abc import Collection, Iterable

from jaxckpt.cost.fusion_analysis import SourceBytes
from jaxckpt.cost.rates import Rates
from jaxckpt.ir import Kind, Op, Phase

_ONE_PASS = 48
"""Steps within which loops over the same array share one pass over it (the maximum and the sum of a softmax, the mean
and the variance of a normalisation). The median error of seconds is 4.7% with 12, and 4.0% with 24, 48 and 96; the mean
one 5.9%, 6.3%, 6.5% and 6.5% (`python -m benchmarks.constants`)."""


class SharedPasses:
    """The kernels of one schedule that are loops over elements, in the order of its steps."""

    def __init__(self, rates: Rates, strided_reductions: frozenset[int]):
        self._rates = rates
        self._strided_reductions = strided_reductions
        self._last_pass: dict[int, int] = {}
        """For each buffer the kernel of the last loop that read or wrote it."""
        self._ready: dict[int, int] = {}
        """For each buffer the kernel that writes it, or the last barrier that it passed."""
        self._reduced: set[int] = set()
        """Buffers that reductions write."""
        self._kernel_s: dict[int, tuple[float, float]] = {}
        """Seconds of traffic and of arithmetic of each kernel."""

    def enter_loop(self) -> None:
        """The steps that follow stand in another loop's body."""
        self._last_pass.clear()

    def pass_barrier(self, at: int, sources: SourceBytes) -> None:
        """Buffers pass a barrier: what is behind it joins no kernel before it over them."""
        for source in sources:
            self._last_pass.pop(source, None)
            self._ready[source] = at

    def write(self, kernel: int, op: Op, written: Iterable[int]) -> None:
        """A kernel, a loop or not, writes buffers."""
        for instance in written:
            self._ready[instance] = kernel
            if op.kind is Kind.REDUCTION:
                self._reduced.add(instance)

    def join(
        self,
        at: int,
        op: Op,
        reads: SourceBytes,
        traffic_bytes: int,
        arithmetic_s: float,
        siblings: Collection[int] = (),
    ) -> tuple[int, float]:
        """The kernel in which a loop runs, as the step that starts it, and the seconds that the loop adds to it.

        Args:
          at: The step.
          op: Its op.
          reads: Buffers, each with the bytes that the loop reads of it.
          traffic_bytes: Bytes that it reads and writes.
          arithmetic_s: Seconds of its arithmetic.
          siblings: Buffers of sibling kernels (`sibling_kernels`): the loop joins the one that is there already.
        """
        kernel = next((self._ready[s] for s in siblings if s in self._ready), None)
        if kernel is None:
            kernel = self._kernel_of(at, op, reads)
        before_s = self._kernel_s.get(kernel)
        launch_s = 0.0
        if before_s is None:
            before_s, launch_s = (0.0, 0.0), self._rates.launch_s
        else:
            traffic_bytes -= sum(size for source, size in reads.items() if self._last_pass.get(source) == kernel)
        traffic_s = before_s[0] + traffic_bytes / self._rates.memory_bandwidth_bytes_per_s
        self._kernel_s[kernel] = after_s = (traffic_s, before_s[1] + arithmetic_s)
        return kernel, max(after_s) - max(before_s) + launch_s

    def touch(self, kernel: int, buffers: Iterable[int]) -> None:
        """A kernel goes over buffers: later loops over them may join it."""
        self._last_pass.update(dict.fromkeys(buffers, kernel))

    def _kernel_of(self, at: int, op: Op, reads: SourceBytes) -> int:
        kernel = self._last_shared(op, reads)
        if kernel is None or (at - kernel > _ONE_PASS and op.phase is not Phase.UPDATE):
            return at
        return at if self._comes_after(kernel, op, reads) else kernel

    def _comes_after(self, kernel: int, op: Op, reads: SourceBytes) -> bool:
        """True if a loop needs what a later kernel writes, or all of a reduction of this one."""
        if max(self._ready.get(source, -1) for source in reads) > kernel:
            return True
        nests = op.kind is Kind.REDUCTION and op.id not in self._strided_reductions
        return not nests and any(s in self._reduced and self._ready[s] == kernel for s in reads)

    def _last_shared(self, op: Op, reads: SourceBytes) -> int | None:
        """The last kernel that went over the largest of some operands; of an update, over any."""
        largest_bytes = 0 if op.phase is Phase.UPDATE else max(reads.values(), default=0)
        shared = (source for source, size in reads.items() if size >= largest_bytes)
        return max((self._last_pass[source] for source in shared if source in self._last_pass), default=None)
