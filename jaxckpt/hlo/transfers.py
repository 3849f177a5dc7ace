"""What hides the copies between device and host in a compiled program.

XLA makes two instructions of a copy, one that starts it and one that waits for it; both stand in the schedule. What
runs between them hides the copy. Two figures say how well: of each copy by itself, the part of it that the work in
between is long enough for; and of all together, the seconds by which they delay the program where they queue, one
after the other on one link each way. A program can hide each of its copies and still ask more of the link than it
carries.

A copy in the body of a loop starts and is waited for in every turn, so a turn is looked at by itself and counts as
often as the loop turns. Copies of a loop and of what is around it are taken not to meet on the link.

Read after `memory` and `time`.
"""

from collections import defaultdict
from dataclasses import dataclass
from itertools import accumulate

from jaxckpt.cost import HostLinkQueue, Rates
from jaxckpt.hlo.memory import MemoryMap
from jaxckpt.hlo.roofline import kernel_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Hiding:
    """What is hidden of a program's copies one way, each looked at by itself.

    Attributes:
      copies: How many there are in one step, those of a loop in each turn.
      size_bytes: All of them together.
      hidden_bytes: Of each copy the part that the work between its start and its end is long enough for, added up.
      whole: How many copies are hidden whole.
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
    """What is hidden of the copies one way.

    Args:
      memory: Of the compiled program.
      rates: What the device and its link to the host can do.
      to_host: The way.
    """
    clock_s = list(accumulate((k.count * kernel_s(k, rates) for k in memory.kernels), initial=0.0))
    found = [t for t in memory.transfers if t.to_host is to_host]
    work_s = [(clock_s[t.ends] - clock_s[t.starts]) / t.count for t in found]
    hidden_bytes = [
        min(float(t.size_bytes), seconds * rates.host_bandwidth_bytes_per_s)
        for t, seconds in zip(found, work_s, strict=True)
    ]
    return Hiding(
        copies=round(sum(t.count for t in found)),
        size_bytes=round(sum(t.count * t.size_bytes for t in found)),
        hidden_bytes=sum(t.count * hidden for t, hidden in zip(found, hidden_bytes, strict=True)),
        fully_hidden=round(
            sum(t.count for t, hidden in zip(found, hidden_bytes, strict=True) if t.size_bytes == hidden)
        ),
    )


def stall_s(memory: MemoryMap, rates: Rates) -> float:
    """Seconds by which copies delay the program: its kernels one after the other, its copies in a queue each way.

    Args:
      memory: Of the compiled program.
      rates: What the device and its link to the host can do.
    """
    return sum(count * _stall_of_turn_s(memory, rates, count) for count in {t.count for t in memory.transfers})


def _stall_of_turn_s(memory: MemoryMap, rates: Rates, count: float) -> float:
    """What the copies that run so often delay one turn of their loops, or the program where they run once."""
    transfers = [t for t in memory.transfers if t.count == count]
    starts = {t.starts: t for t in transfers}
    ends: defaultdict[int, list[int]] = defaultdict(list)
    for transfer in transfers:
        ends[transfer.ends].append(transfer.starts)
    copies, now_s = HostLinkQueue(rates.host_bandwidth_bytes_per_s), 0.0
    for at, kernel in enumerate((*memory.kernels, None)):
        for started in ends[at]:
            now_s += copies.wait(started, now_s=now_s)
        if at in starts:
            start = copies.store if starts[at].to_host else copies.load
            start(at, starts[at].size_bytes, now_s=now_s)
        if kernel is not None:
            now_s += kernel.count * kernel_s(kernel, rates) / count
    return copies.stall_s
