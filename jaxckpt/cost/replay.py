"""Bytes alive after every step of a schedule, and the seconds that the schedule takes.

One pass over the steps. A kernel runs where a materialised instance is written: it reads the instance's sources
and writes it. A buffer lives from its kernel to the last kernel that reads it, directly or through a chain. The
arguments and the results have their own memory and are not counted here. Two things are moved to where compilers put
them: an update runs as soon as what it needs is there, so that gradients need not wait for each other; and what
depends on nothing (the zeros that a gradient is scattered into) is made at the start, however late it is read.

It is the one place that computes a peak: solvers, plans and reports all ask here.

Exact for the sizes in the graph and the fusion rules; it leaves out padding, fragmentation, workspaces that a
compiler picks by itself, and changes of order that its scheduler makes. Read after `fusion`.
Complexity: linear in steps times the (small) number of sources.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from jaxckpt.cost.fusion import Fusion, Sources, read_through
from jaxckpt.cost.price import Prices
from jaxckpt.cost.rates import Rates
from jaxckpt.ir import Barrier, Graph, Kind, Op, Phase, Run, Schedule, Step

_ONE_PASS = 48
"""Steps within which reductions over the same array share one pass over it (the maximum and the sum of a softmax, the
mean and the variance of a normalisation)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What a schedule takes.

    Attributes:
      live_bytes: After each step of `steps`, device bytes of temporaries, the step's own workspace included.
      steps: The schedule's steps, in the order in which they were replayed.
      births: For each buffer (an instance) the index of the step that makes it.
      deaths: For each buffer the index of the last step that reads it.
      seconds: For each step the seconds of the kernel that it starts; 0 where it only passes through one.
      step_s: Seconds of all kernels together.
      recompute_s: Those of copies.
    """

    live_bytes: tuple[int, ...]
    steps: tuple[Step, ...]
    births: dict[int, int]
    deaths: dict[int, int]
    seconds: tuple[float, ...]
    step_s: float
    recompute_s: float

    @property
    def peak_bytes(self) -> int:
        """The largest number of bytes alive at once."""
        return max(self.live_bytes, default=0)

    @property
    def peak_step(self) -> int:
        """The index of the (first) step at which `peak_bytes` are alive."""
        return self.live_bytes.index(self.peak_bytes) if self.live_bytes else 0

    def alive_at(self, step: int) -> tuple[int, ...]:
        """The buffers alive at a step, as instances."""
        return tuple(b for b, birth in self.births.items() if birth <= step <= self.deaths[b])


def replay(
    graph: Graph, schedule: Schedule, *, fusion: Fusion, prices: Prices, rates: Rates
) -> Replay:
    """Replays a schedule symbolically.

    Args:
      graph: The step.
      schedule: What is run, from `jaxckpt.ir.schedule`.
      fusion: `fuse(graph)`.
      prices: `price(graph, rates)`.
      rates: What the target can do.

    Returns:
      Bytes and seconds. `peak_bytes` is of temporaries alone: neither arguments nor results.
    """
    return _Replayer(graph, schedule, fusion, prices, rates).run()


class _Replayer:
    def __init__(
        self, graph: Graph, schedule: Schedule, fusion: Fusion, prices: Prices, rates: Rates
    ):
        self.graph = graph
        self.schedule = schedule
        self.fusion = fusion
        self.prices = prices
        self.rates = rates
        self.size_bytes = [graph.values[v].size_bytes for v in schedule.origin]
        self.sources: list[Sources] = [{}] * len(schedule.origin)
        self.alu_s = [0.0] * len(schedule.origin)
        for value in (*graph.inputs, *graph.constants):
            self.sources[value] = {value: graph.values[value].size_bytes}
        self.elsewhere = {*graph.inputs, *graph.constants}
        self.births: dict[int, int] = {}
        self.deaths: dict[int, int] = {}
        self.in_place: dict[int, bool] = {}
        self.workspace_bytes: dict[int, int] = {}
        self.seconds = [0.0] * len(schedule.steps)
        self.recompute_s = 0.0
        self.swept: dict[int, int] = {}

    def run(self) -> Replay:
        steps = tuple(updates_early(self.graph, self.schedule))
        for at, step in enumerate(steps):
            if isinstance(step, Barrier):
                self._barrier(at, step)
            else:
                self._run(at, step)
        for instance in self.schedule.outputs:
            self.elsewhere.update(self.sources[instance])
        return Replay(
            live_bytes=self._live_bytes(len(steps)),
            steps=steps,
            births={b: at for b, at in self.births.items() if b not in self.elsewhere},
            deaths=self.deaths,
            seconds=tuple(self.seconds),
            step_s=sum(self.seconds),
            recompute_s=self.recompute_s,
        )

    def _barrier(self, at: int, step: Barrier) -> None:
        """A barrier hands buffers on; what was not in memory is written for it."""
        for read, write in zip(step.reads, step.writes, strict=True):
            size_bytes = self.size_bytes[read]
            if read not in self.sources[read] and len(self.sources[read]) != 1:
                self._kernel(at, (write,), self.sources[read], seconds=self.alu_s[read], again=False)
                continue
            (source,) = self.sources[read]
            if self.size_bytes[source] != size_bytes:
                self._kernel(at, (write,), self.sources[read], seconds=self.alu_s[read], again=False)
                continue
            self._touch(at, self.sources[read])
            self.sources[write] = self.sources[read]

    def _run(self, at: int, step: Run) -> None:
        op = self.graph.ops[step.op]
        through = read_through(self.graph, op.id, [self.sources[i] for i in step.reads])
        alu_s = self.prices.vector_s[op.id]
        alu_s += max((self.alu_s[i] for i in step.reads if i not in self.sources[i]), default=0.0)
        written = tuple(
            i for v, i in zip(op.writes, step.writes, strict=True) if v in self.fusion.materialised
        )
        for instance in set(step.writes) - set(written):
            self.sources[instance] = through
            self.alu_s[instance] = alu_s
        if written or op.effects:
            seconds = max(alu_s, self.prices.matrix_s[op.id])
            self._kernel(at, written, through, seconds=seconds, again=step.again, op=op)

    def _kernel(
        self,
        at: int,
        writes: tuple[int, ...],
        reads: Sources,
        *,
        seconds: float,
        again: bool,
        op: Op | None = None,
    ) -> None:
        traffic_bytes = sum(reads.values()) + sum(self.size_bytes[w] for w in writes)
        if op is not None:
            traffic_bytes += op.traffic_bytes - self._on_chip_bytes(at, op, reads)
            if op.workspace_bytes:
                self.workspace_bytes[at] = self.workspace_bytes.get(at, 0) + op.workspace_bytes
        kernel_s = self.rates.launch_s + max(
            seconds, traffic_bytes / self.rates.memory_bandwidth_bytes_per_s
        )
        self.seconds[at] += kernel_s
        if again:
            self.recompute_s += kernel_s
        self._touch(at, reads)
        for write in writes:
            self.sources[write] = {write: self.size_bytes[write]}
            self.births[write] = 0 if op is not None and not op.reads else at
            self.deaths[write] = at
            self.in_place[write] = op is not None and op.kind in (
                Kind.ELEMENTWISE,
                Kind.SCATTER,
                Kind.VIEW,
            )

    def _on_chip_bytes(self, at: int, op: Op, reads: Sources) -> int:
        """Bytes that a reduction need not read, because one just before it went over the same rows."""
        if op.kind is not Kind.REDUCTION or not reads:
            return 0
        rows = max(reads, key=lambda source: reads[source])
        before = self.swept.get(rows)
        self.swept[rows] = at
        return reads[rows] if before is not None and at - before <= _ONE_PASS else 0

    def _touch(self, at: int, reads: Sources) -> None:
        for source in reads:
            if source in self.births:
                self.deaths[source] = at

    def _live_bytes(self, length: int) -> tuple[int, ...]:
        """Sweeps births and deaths; a kernel may write over a buffer of the same size that dies there."""
        born: list[list[int]] = [[] for _ in range(length)]
        dying: list[list[int]] = [[] for _ in range(length)]
        for buffer, at in self.births.items():
            if buffer not in self.elsewhere:
                born[at].append(buffer)
                dying[self.deaths[buffer]].append(buffer)
        live_bytes, timeline = 0, []
        for at in range(length):
            free = [self.size_bytes[b] for b in dying[at] if self.births[b] < at]
            reused = 0
            for buffer in born[at]:
                size_bytes = self.size_bytes[buffer]
                if self.in_place[buffer] and size_bytes in free:
                    free.remove(size_bytes)
                    reused += size_bytes
                live_bytes += size_bytes
            timeline.append(live_bytes - reused + self.workspace_bytes.get(at, 0))
            live_bytes -= sum(self.size_bytes[b] for b in dying[at])
        return tuple(timeline)


def updates_early(graph: Graph, schedule: Schedule) -> Iterator[Step]:
    """The steps of a schedule with each update moved up to where its last operand is made."""
    steps = schedule.steps
    made = [0] * len(schedule.origin)
    due: list[list[Step]] = [[] for _ in steps]
    for at, step in enumerate(steps):
        ready = at
        if isinstance(step, Run) and graph.ops[step.op].phase is Phase.UPDATE and not step.again:
            ready = max((made[i] for i in step.reads), default=at)
        due[ready].append(step)
        for instance in step.writes:
            made[instance] = ready
    for together in due:
        yield from together
