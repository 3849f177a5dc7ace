"""Estimated seconds of a compiled program on a device: kernels by roofline, copies to and from the host by queueing.

Each kernel takes the longer of its arithmetic and its traffic, and a launch. The estimate assumes:

1. Kernels run one after the other.
2. Collectives take the time of the links between devices of one host, or of the network between hosts, if it is
   slower.
3. Copies between device and host take no time of kernels.
4. The arithmetic of a library's kernel may be unknown (`Kernel.is_priced`).

XLA makes two scheduled instructions of a copy: one starts the copy and one waits for it. Kernels between the two hide
the copy. Two figures say how well: `hiding`, for each copy by itself, the part that the kernels in between are long
enough for; and `stall_s`, the seconds by which all copies delay the program when they queue on one link each way. A
program can hide each of its copies and still ask more of the link than the link carries.

A copy in the body of a loop starts and is waited for in every iteration, so that one iteration is simulated by itself
and counts as often as the loop iterates. Copies of a loop and around the loop are assumed not to meet on the link.

Read after `memory` and `program`.
"""

from collections import defaultdict
from dataclasses import dataclass
from itertools import accumulate

from jaxckpt.cost import HostLinkQueue, Rates
from jaxckpt.hlo.memory import Kernel, MemoryMap, Part, Transfer
from jaxckpt.hlo.program import COLLECTIVES

_NO_KERNEL_TIME = (
    *("copy-start", "copy-done", "async-start", "async-done"),
    *("all-reduce-done", "all-gather-done", "collective-permute-done"),
)
"""Halves of asynchronous instructions: they occupy no kernel time of their own."""


def roofline_s(kernel: Kernel, rates: Rates, *, in_host: int = 0) -> float:
    """Seconds of one run of a kernel once it has begun, by roofline alone: its arithmetic or its traffic.

    Of a collective between hosts `in_host` devices of a group are in one host.
    """
    if kernel.opcode in _NO_KERNEL_TIME or kernel.is_copy:
        return 0.0
    if kernel.opcode.removesuffix("-start") in COLLECTIVES:
        return rates.exchange_s(kernel.traffic_bytes, in_host=in_host)
    arithmetic_s = (kernel.flops - kernel.matmul_flops) / rates.vector_flops_per_s
    if kernel.matmul_flops:
        arithmetic_s += rates.matmul_s(kernel.matmul_flops, kernel.matmul_dtype)
    return max(arithmetic_s, kernel.traffic_bytes / rates.memory_bandwidth_bytes_per_s)


def kernel_s(kernel: Kernel, rates: Rates, *, in_host: int = 0) -> float:
    """Seconds of one run of a kernel; `in_host` is that of `roofline_s`."""
    if kernel.opcode in _NO_KERNEL_TIME or kernel.is_copy:
        return 0.0
    return rates.launch_s + roofline_s(kernel, rates, in_host=in_host)


def kernels_s(memory: MemoryMap, rates: Rates) -> tuple[float, ...]:
    """Seconds that each kernel takes in one run of the program."""
    spanning = dict(memory.spanning)
    return tuple(k.count * kernel_s(k, rates, in_host=spanning.get(k.name, 0)) for k in memory.kernels)


def step_s(memory: MemoryMap, rates: Rates) -> float:
    """Seconds of one run of the program, without the delays of copies between device and host."""
    return sum(kernels_s(memory, rates))


def seconds_by_part(memory: MemoryMap, rates: Rates) -> dict[Part, float]:
    """The same for each part of the step; parts without kernels are left out."""
    parts: dict[Part, float] = {}
    for kernel, seconds in zip(memory.kernels, kernels_s(memory, rates), strict=True):
        parts[kernel.part] = parts.get(kernel.part, 0.0) + seconds
    return parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Hiding:
    """Hidden part of a program's copies one way, each by itself; those of a loop count in each iteration.

    Attributes:
      hidden_bytes: Of each copy the part that the work between its start and its end is long enough for, added up.
      fully_hidden: How many copies are hidden completely.
    """

    copies: int
    size_bytes: int
    hidden_bytes: float
    fully_hidden: int

    @property
    def share(self) -> float:
        """The hidden share of the bytes; 1 where nothing is copied."""
        return self.hidden_bytes / self.size_bytes if self.size_bytes else 1.0


def hiding(memory: MemoryMap, rates: Rates, *, to_host: bool) -> Hiding:
    """Hidden part of the copies one way."""
    clock_s = list(accumulate(kernels_s(memory, rates), initial=0.0))

    def hidden_bytes(transfer: Transfer) -> float:
        kernels_s = (clock_s[transfer.ends] - clock_s[transfer.starts]) / transfer.count
        return min(float(transfer.size_bytes), kernels_s * rates.host_bandwidth_bytes_per_s)

    copies = [(t.count, t.size_bytes, hidden_bytes(t)) for t in memory.transfers if t.to_host is to_host]
    return Hiding(
        copies=round(sum(count for count, _, _ in copies)),
        size_bytes=round(sum(count * size for count, size, _ in copies)),
        hidden_bytes=sum(count * hidden for count, _, hidden in copies),
        fully_hidden=round(sum(count for count, size, hidden in copies if size == hidden)),
    )


def stall_s(memory: MemoryMap, rates: Rates) -> float:
    """Seconds by which copies delay the program: its kernels one after the other, its copies in a queue each way."""
    return sum(count * _stall_per_iteration_s(memory, rates, count) for count in {t.count for t in memory.transfers})


def _stall_per_iteration_s(memory: MemoryMap, rates: Rates, count: float) -> float:
    """Seconds by which copies of one count delay one iteration of their loop, or the program where they run once."""
    transfers = [t for t in memory.transfers if t.count == count]
    starts = {t.starts: t for t in transfers}
    ends: defaultdict[int, list[int]] = defaultdict(list)
    for transfer in transfers:
        ends[transfer.ends].append(transfer.starts)
    copies, now_s = HostLinkQueue(rates.host_bandwidth_bytes_per_s), 0.0
    for at, seconds in enumerate((*kernels_s(memory, rates), 0.0)):
        for started in ends[at]:
            now_s += copies.wait(started, now_s=now_s)
        if at in starts:
            start = copies.store if starts[at].to_host else copies.load
            start(at, starts[at].size_bytes, now_s=now_s)
        now_s += seconds / count
    return copies.stall_s
