"""Bytes alive after every step of a schedule, and the seconds that the schedule takes.

One pass over the steps. A kernel runs where a materialised instance is written: it reads the instance's sources
and writes it. A buffer lives from its kernel to the last kernel that reads it, directly or through a chain. Loops
over the same array, one soon after the other, become one kernel that reads it once, where neither waits for the
other; a reduction becomes one with the loop that writes what it reads. A barrier between them keeps them apart. The
arguments and the results have their own memory and are not counted here. One thing is moved to where compilers put
it: an update runs as soon as what it needs is there, so that gradients need not wait for each other. What depends on
nothing (the zeros that a gradient is scattered into) is made where it stands, right before what reads it, and kept
for the next one that is like it, unless it has to wait for something.

Copies to the host and back run beside the kernels, one after the other each way. A kernel that needs what is still on
its way waits for it, and so does the forward pass where a copy must be done; `turning` has those of loops' turns.

What devices exchange takes the time of the links, and nothing hides it. A copy of a product gathers no operand anew:
its gradients need the same operands whole.

The body of an open loop is replayed once: its seconds count for every turn, and `turns` says what waits for all turns.

It is the one place that computes a peak: solvers, plans and reports all ask here.

Exact for the sizes in the graph and the fusion rules; it leaves out padding, fragmentation, workspaces that a
compiler picks by itself, and changes of order that its scheduler makes. Read after `fusion` and `copies`.
Complexity: linear in steps times the (small) number of sources.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from jaxckpt.cost.branch_residuals import Span
from jaxckpt.cost.fusion import Fusion, FusionAnalysis, SourceBytes
from jaxckpt.cost.loop_liveness import LoopLiveness
from jaxckpt.cost.loop_transfers import LoopTransfers
from jaxckpt.cost.output_reuse import BufferLiveRange, placed_in_outputs
from jaxckpt.cost.rates import Rates
from jaxckpt.cost.roofline import ArithmeticCosts
from jaxckpt.cost.transfers import HostLinkQueue
from jaxckpt.cost.update_order import updates_early
from jaxckpt.ir import Graph, Kind, Offload, Op, Phase, Trait
from jaxckpt.ir.loop import ALL_ITERATIONS, STACK
from jaxckpt.schedule import Barrier, Move, Run, Schedule, Step

_WRITES_IN_PLACE = frozenset({Kind.ELEMENTWISE, Kind.SCATTER, Kind.VIEW})
_FLAT, _STACKED = 2, 3
"""Dimensions of a matrix, and of a stack of them."""
_ONE_PASS = 48
"""Steps within which loops over the same array share one pass over it (the maximum and the sum of a softmax, the
mean and the variance of a normalisation). Updates do at any distance: optimisers go over all parameters again and
again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What a schedule takes.

    Attributes:
      live_bytes: After each step of `steps`, device bytes of temporaries, the step's own workspace included.
      steps: The schedule's steps, in the order in which they were replayed.
      births: For each buffer (an instance) the index of the step that makes it.
      deaths: For each buffer the index of the last step that reads it.
      seconds: For each step the seconds of the kernel that it starts, in all turns of the loops around; 0 where it
        only passes through one.
      step_s: Seconds of all kernels together.
      recompute_s: Those of copies.
      stall_s: Seconds of waiting for copies between device and host, part of `step_s`.
      host_bytes: The largest number of bytes on the host at once.
    """

    live_bytes: tuple[int, ...]
    steps: tuple[Step, ...]
    births: dict[int, int]
    deaths: dict[int, int]
    seconds: tuple[float, ...]
    step_s: float
    recompute_s: float
    stall_s: float = 0.0
    host_bytes: int = 0

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
    graph: Graph,
    schedule: Schedule,
    *,
    fusion: Fusion,
    arithmetic: ArithmeticCosts,
    rates: Rates,
    is_full_step: bool = True,
) -> Replay:
    """Replays a schedule symbolically.

    Args:
      graph: The step.
      schedule: What is run, from `jaxckpt.schedule.schedule`.
      fusion: `fuse(graph)`.
      arithmetic: `arithmetic_costs(graph, rates)`.
      rates: What the target can do.
      is_full_step: True if the graph is a step, whose results have memory from the start; False for a part of one.

    Returns:
      Bytes and seconds. `peak_bytes` is of temporaries alone: neither arguments nor results.
    """
    return _Replayer(graph, schedule, fusion, arithmetic, rates, is_full_step).run()


class _Replayer:
    """The pass."""

    def __init__(
        self,
        graph: Graph,
        schedule: Schedule,
        fusion: Fusion,
        arithmetic: ArithmeticCosts,
        rates: Rates,
        is_full_step: bool,
    ):
        self.graph = graph
        self.is_full_step = is_full_step
        self.schedule = schedule
        self.arithmetic = arithmetic
        self.rates = rates
        self.steps = tuple(updates_early(graph, schedule))
        self.spread = FusionAnalysis(fusion.rules, self.steps, schedule.origin, schedule.outputs)
        self.turns = LoopLiveness(graph, self.steps)
        self.moves = any(isinstance(step, Move) for step in self.steps)
        self.loop: int | None = None
        self.size_bytes = self.spread.size_bytes
        self.sources = self.spread.sources
        self.chain_s = [0.0] * len(schedule.origin)
        self.elsewhere = {*graph.inputs, *graph.constants}
        self.births: dict[int, int] = {}
        self.deaths: dict[int, int] = {}
        self.in_place: set[int] = set()
        self.flat: set[int] = set()
        """Buffers that kernels of another shape made, which no later kernel writes over."""
        self.workspace_bytes: dict[int, int] = {}
        self.seconds = [0.0] * len(self.steps)
        self.recompute_s = 0.0
        self.looped: dict[int, int] = {}
        """For each buffer the last loop that read or wrote it, as the step of its kernel."""
        self.kernels: dict[int, tuple[float, float]] = {}
        """Seconds of traffic and of arithmetic of each loop."""
        self.made_by: dict[int, int] = {}
        """For each buffer the step whose kernel writes it, or the last barrier that it passed."""
        self.of_nothing: dict[tuple[object, ...], int] = {}
        """Zeros to scatter into, the first of each size."""
        self.reduced: set[int] = set()
        """Buffers that reductions write."""
        self.clock_s = 0.0
        self.copies = HostLinkQueue(rates.host_bandwidth_bytes_per_s)
        self.turning = LoopTransfers(graph, rates.host_bandwidth_bytes_per_s)
        self.last_turn: dict[int, Span] = {}
        """For each instance that turns send ahead what the last of them has made."""
        self.leaving: dict[int, int] = {}
        """Instances on their way to the host, each with what it is copied from."""

    def run(self) -> Replay:
        for at, step in enumerate(self.steps):
            if step.loop != self.loop:
                self.looped.clear()
                self.loop = step.loop
                self.turning.begin_iteration(step.loop, now_s=self.clock_s)
            if isinstance(step, Run):
                self._run(at, step)
            elif isinstance(step, Barrier):
                self._barrier(at, step)
            else:
                self._move(at, step)
            for loop in self.graph.path(step.loop):
                if at == self.turns.end(loop):
                    self.seconds[at] += self.turning.end_wait_s(loop, now_s=self.clock_s + self.seconds[at])
            self.clock_s += self.seconds[at]
        for instance in self.schedule.outputs:
            self.elsewhere.update(self.sources[instance])
        self._stack()
        return Replay(
            live_bytes=self._live_bytes(len(self.steps)),
            steps=self.steps,
            births={b: at for b, at in self.births.items() if b not in self.elsewhere},
            deaths=self.deaths,
            seconds=tuple(self.seconds),
            step_s=sum(self.seconds),
            recompute_s=self.recompute_s,
            stall_s=self.copies.stall_s + self.turning.stall_s,
            host_bytes=self.copies.peak_host_bytes,
        )

    def _stack(self) -> None:
        """What waits for all turns is written to its stack."""
        filled: set[int] = set()
        for source, span in self.turns.waiting.items():
            made = self.births.get(source)
            if source in self.turns.in_slots:
                continue
            if source in self.turns.stacks:
                stack = self.turns.stacks[source]
                self.deaths[stack] = max(self.deaths[stack], span.death)
            elif made is not None and id(span) not in filled:
                self._add_stack_s(made, source, span.size_bytes)
                filled.add(id(span))
            if self.schedule.origin[source] in self.spread.rules.transposed_stacks:
                at = self.turns.wanted[source]
                self.seconds[at] += self._kernel_s(2 * span.size_bytes, 0.0)
                self.workspace_bytes[at] = max(self.workspace_bytes.get(at, 0), span.size_bytes)

    def _add_stack_s(self, at: int, source: int, stack_bytes: int) -> None:
        """The seconds of a stack: it is filled with zeros, and every turn copies into it what it has made.

        A loop over elements writes to the stack itself where nothing else in the body reads what it makes. What a
        branch makes is copied in every turn, whichever branch runs.
        """
        maker, by = self.steps[at], self.turns.stacked_by(source)
        self.seconds[at] += self._kernel_s(stack_bytes, 0.0)
        fused = isinstance(maker, Run) and self.spread.rules.fuses[maker.op] and by == maker.loop
        if not fused or self.turns.is_read_inside(source):
            self.seconds[at] += self.graph.runs_per_step(by) * self._kernel_s(2 * self.size_bytes[source], 0.0)

    def _copy_slices(self, at: int, instance: int) -> None:
        """Slices of stacks that have to be in memory."""
        for source, size_bytes in self.sources[instance].items() if self.graph.loops else ():
            self._copy_slice(at, source, size_bytes, in_memory=True)

    def _copy_slice(self, at: int, source: int, size_bytes: int, *, in_memory: bool) -> None:
        runs = self.turns.copies_of(at, source, size_bytes, in_memory=in_memory)
        self.seconds[at] += runs * self._kernel_s(2 * size_bytes, 0.0)

    def _barrier(self, at: int, step: Barrier) -> None:
        """A barrier hands buffers on."""
        if step.why == "store":
            self._wait(at, step.reads)
        for read, write in zip(step.reads, step.writes, strict=True):
            sources = self.sources[read]
            self._copy_slices(at, read)
            self._touch(at, sources)
            self.size_bytes[write] = self.size_bytes[read]
            if read in self.copies:
                self._hand_on(read, write, left=step.why == "store")
            else:
                self.sources[write] = sources
            for source in sources:
                self.looped.pop(source, None)
                self.made_by[source] = at
                self.flat.discard(source)

    def _move(self, at: int, step: Move) -> None:
        """A value put where it waits, or brought back; what comes back is a buffer of its own."""
        (read,), (write,) = step.reads, step.writes
        if isinstance(step.decision, Offload) and step.loop is not None:
            self._send_turn(at, step) if not step.restores else self._bring_turn(at, step)
            return
        self._touch(at, self.sources[read])
        if isinstance(step.decision, Offload) and not step.restores:
            self.leaving[write], self.size_bytes[write] = read, self.size_bytes[read]
            self.copies.store(write, self.size_bytes[read], now_s=self.clock_s)
            return
        self.births[write] = self.deaths[write] = at
        if isinstance(step.decision, Offload):
            self.size_bytes[write] = self.size_bytes[read]
            self._touch_leaving(at, read)
            self.copies.load_stored(read, write, self.size_bytes[read], now_s=self.clock_s)
        else:
            parts = self.graph.axis_size(step.decision.axis or "")
            self.size_bytes[write] = self.size_bytes[read] * parts if step.restores else self.size_bytes[read] // parts
            moved_s = self._kernel_s(self.size_bytes[read] + self.size_bytes[write], 0.0)
            if step.restores:
                moved_s += self.rates.exchange_s(self.size_bytes[write] - self.size_bytes[read])
            self.seconds[at] += self.turns.number(step) * moved_s
        self.sources[write] = {write: self.size_bytes[write]}

    def _send_turn(self, at: int, step: Move) -> None:
        """Puts a turn's value into its stack on the host; a turn ahead, the turn before hands it on."""
        (read,), (write,), loop = step.reads, step.writes, step.loop
        assert loop is not None, "turns are those of a loop"
        size_bytes, begin, end = self.size_bytes[read], self.turns.begin(loop), self.turns.end(loop)
        self.size_bytes[write], self.sources[write] = size_bytes, {}
        if self.sources[read] == {read: size_bytes} and read in self.births:
            self.births[read] = begin if step.is_pipelined else self.births[read]
            self.deaths[read] = end
        else:
            self._touch(at, self.sources[read])
            self.turns.slot(begin if step.is_pipelined else at, end, size_bytes)
            self.seconds[at] += self.turns.number(step) * self._kernel_s(2 * size_bytes, 0.0)
        if step.is_pipelined:
            self.last_turn[write] = self.turns.slot(end, end, size_bytes)
        self.copies.add_host_bytes(self._all_turns(write, size_bytes))
        now_s = self.clock_s + self.seconds[at]
        self.turning.store(write, loop, size_bytes, now_s=now_s, ahead=step.is_pipelined)
        self.seconds[at] += self.turning.wait_s(write, now_s=now_s)

    def _bring_turn(self, at: int, step: Move) -> None:
        """Takes a turn's value from its stack on the host; a turn ahead, for the turn that comes next."""
        (read,), (write,), loop = step.reads, step.writes, step.loop
        assert loop is not None, "turns are those of a loop"
        size_bytes, begin, end = self.size_bytes[read], self.turns.begin(loop), self.turns.end(loop)
        self.size_bytes[write], self.sources[write] = size_bytes, {write: size_bytes}
        self.births[write], self.deaths[write] = begin, end if step.is_pipelined else at
        if step.is_pipelined:
            self.last_turn[read].death = max(self.last_turn[read].death, begin - 1)
            self.turns.slot(begin, end, size_bytes)
            self.seconds[at] += self.turns.number(step) * self._kernel_s(2 * size_bytes, 0.0)
        self.copies.add_host_bytes(-self._all_turns(write, size_bytes))
        self.turning.load(write, loop, size_bytes, ahead=step.is_pipelined)

    def _all_turns(self, instance: int, turn_bytes: int) -> int:
        value = self.schedule.origin[instance]
        return self.graph.residual_bytes(value) * turn_bytes // self.graph.values[value].size_bytes

    def _hand_on(self, read: int, write: int, *, left: bool) -> None:
        """What is on the host passes a barrier under a new id; one that has left holds nothing here any more."""
        self.copies.pass_on(read, write)
        source = self.leaving.pop(read, None)
        if source is not None and not left:
            self.leaving[write] = source

    def _wait(self, at: int, instances: Sequence[int]) -> None:
        """Waits for copies to the host; what they copy from is held until they are done."""
        for instance in instances:
            self._touch_leaving(at, instance)
            self.seconds[at] += self.copies.wait(instance, now_s=self.clock_s + self.seconds[at])

    def _touch_leaving(self, at: int, instance: int) -> None:
        if instance in self.leaving:
            self._touch(at, self.sources[self.leaving[instance]])

    def _run(self, at: int, step: Run) -> None:
        """An op: it starts a kernel where something that it writes is in memory, else it is part of later ones."""
        through = self.spread.run(step)
        seconds, before_s = self.chain_s, 0.0
        for instance in step.reads:  # far quicker than `max` over a generator
            if seconds[instance] > before_s:
                before_s = seconds[instance]
        chain_s = self.arithmetic.vector_s[step.op] + before_s
        materialised = self.spread.materialised
        written = []
        for instance in step.writes:
            if instance in materialised:
                written.append(instance)
            else:
                seconds[instance] = chain_s
        op = self.graph.ops[step.op]
        if written or op.effects:
            self._kernel(at, op, step, through, written, max(chain_s, self.arithmetic.matrix_s[op.id]))

    def _kernel(
        self, at: int, op: Op, step: Run, reads: SourceBytes, written: Sequence[int], arithmetic_s: float
    ) -> None:
        """The kernel that an op starts: its reads live until now, its writes from now on."""
        for position in self.spread.rules.needs_memory[op.id]:
            self._copy_slices(at, step.reads[position])
        traffic_bytes = sum(reads.values()) + sum(self.size_bytes[i] for i in written) + op.traffic_bytes
        if op.kind is Kind.SCATTER and len(step.reads) > 1:
            traffic_bytes = self._scatter_bytes(step, reads)
        if op.primitive == STACK:
            traffic_bytes = 0
        if needed_bytes := op.workspace_bytes + self.arithmetic.padding_bytes[op.id]:
            self.workspace_bytes[at] = needed_bytes
        kernel = at
        if self.spread.rules.fuses[op.id]:
            kernel = self._loop_of(at, op, step, reads)
            kernel_s = self._loop_s(kernel, reads, traffic_bytes, arithmetic_s)
            if not self.spread.holds_rows(step):
                self.looped.update(dict.fromkeys((*reads, *written), kernel))
        else:
            kernel_s = 0.0 if ALL_ITERATIONS in op.effects else self._kernel_s(traffic_bytes, arithmetic_s)
        if op.exchange_bytes:  # of a copy the sums alone
            kernel_s += self.rates.exchange_s(op.exchange_bytes - (op.gathered_bytes if step.is_clone else 0))
        kernel_s *= self.turns.number(step)
        self.seconds[at] += kernel_s
        if self.turns.is_again(step):
            self.recompute_s += kernel_s
        self._touch(at, reads)
        for instance in written:
            self.births[instance] = self.turns.born(at, instance)
            self.deaths[instance] = at
            if not op.reads and step.loop is None and step.after is None and self._is_scattered_into(op):
                self._keep_alike(at, op, instance)
            self.made_by[instance] = kernel
            if op.kind is Kind.REDUCTION:
                self.reduced.add(instance)
            for read in step.reads if op.primitive == STACK else ():
                if read in self.births:
                    self._add_stack_s(self.births[read], read, self.turns.stacked(read, step) * self.size_bytes[read])
            if op.kind is Kind.CONTRACTION and self._is_flattened(op):
                self.flat.add(instance)
            if op.kind in _WRITES_IN_PLACE or self.turns.is_frame(step):
                self.in_place.add(instance)

    def _is_scattered_into(self, op: Op) -> bool:
        """Whether what an op makes is the base of a scatter."""
        readers = (self.graph.ops[r] for r in self.graph.readers[op.writes[0]])
        return any(r.kind is Kind.SCATTER and r.reads[0] == op.writes[0] for r in readers)

    def _keep_alike(self, at: int, op: Op, instance: int) -> None:
        """Zeros are made once: the next ones of their size are a copy of them."""
        value = self.graph.values[op.writes[0]]
        first = self.of_nothing.setdefault((op.primitive, op.detail, value.shape, value.dtype), instance)
        self.deaths[first] = max(self.deaths[first], at)

    def _is_flattened(self, op: Op) -> bool:
        """Whether compilers make a product as a matrix, or a stack of them, whose shape is not the value's."""
        dimensions = len(self.graph.values[op.writes[0]].shape)
        return dimensions > (_STACKED if Trait.BATCHED in op.traits else _FLAT)

    def _scatter_bytes(self, step: Run, reads: SourceBytes) -> int:
        """A scatter goes over its updates, and over as much of what it updates."""
        base = step.reads[0]
        updates = step.reads[1 if self.graph.ops[step.op].primitive == "dynamic_update_slice" else -1]
        others = (size_bytes for source, size_bytes in reads.items() if source not in self.sources[base])
        return sum(others) + 2 * self.size_bytes[updates]

    def _loop_of(self, at: int, op: Op, step: Run, reads: SourceBytes) -> int:
        """The kernel of a loop: an earlier one over the same largest array that need not be waited for, or its own.

        Of an update it is that of any array: gradient, parameter and moments are of one size.
        """
        if not reads or self.spread.holds_rows(step):
            return at
        shared_bytes = 0 if op.phase is Phase.UPDATE else max(reads.values())
        shared = (source for source, touched in reads.items() if touched >= shared_bytes and source in self.looped)
        kernel = max((self.looped[source] for source in shared), default=at)
        far = at - kernel > _ONE_PASS and op.phase is not Phase.UPDATE
        if far or max(self.made_by.get(source, -1) for source in reads) > kernel:
            return at
        waits = any(source in self.reduced and self.made_by[source] == kernel for source in reads)
        holds = op.kind is Kind.REDUCTION and op.id not in self.spread.rules.strided_reductions
        return at if waits and not holds else kernel

    def _loop_s(self, kernel: int, reads: SourceBytes, traffic_bytes: int, arithmetic_s: float) -> float:
        """Seconds that a loop adds to a kernel, its own or one that it joins."""
        joins = kernel in self.kernels
        before_s = self.kernels.get(kernel, (0.0, 0.0))
        if joins:
            traffic_bytes -= sum(
                size_bytes for source, size_bytes in reads.items() if self.looped.get(source) == kernel
            )
        traffic_s = before_s[0] + traffic_bytes / self.rates.memory_bandwidth_bytes_per_s
        self.kernels[kernel] = after_s = (traffic_s, before_s[1] + arithmetic_s)
        return max(after_s) - max(before_s) + (0.0 if joins else self.rates.launch_s)

    def _kernel_s(self, traffic_bytes: int, arithmetic_s: float) -> float:
        traffic_s = traffic_bytes / self.rates.memory_bandwidth_bytes_per_s
        return self.rates.launch_s + max(arithmetic_s, traffic_s)

    def _touch(self, at: int, reads: SourceBytes) -> None:
        for source in reads:
            if source in self.births:
                if not self.graph.loops:
                    self.deaths[source] = at
                else:
                    self._copy_slice(at, source, self.size_bytes[source], in_memory=False)
                    until = self.turns.until(at, source, self.size_bytes[source])
                    self.deaths[source] = max(self.deaths[source], until)
            if not self.moves:
                continue
            if source in self.copies:
                self.seconds[at] += self.copies.wait(source, now_s=self.clock_s + self.seconds[at])
            if source in self.turning:
                self.seconds[at] += self.turning.wait_s(source, now_s=self.clock_s + self.seconds[at])

    def _guests(self) -> frozenset[int]:
        """Temporaries in the memory of results that take over no argument."""
        results = {self.schedule.outputs[i] for i in self.graph.unaliased_outputs} if self.is_full_step else set()
        temporaries = [self._life(buffer) for buffer in self.births if buffer not in self.elsewhere]
        temporaries += (
            BufferLiveRange(buffer=slot, size_bytes=span.size_bytes, birth=span.birth, death=span.death)
            for slot, span in self.turns.slots_of_branches.items()
        )
        return placed_in_outputs(temporaries, [self._life(result) for result in results if result in self.births])

    def _life(self, buffer: int) -> BufferLiveRange:
        birth, death = self.births[buffer], self.deaths[buffer]
        return BufferLiveRange(buffer=buffer, size_bytes=self.size_bytes[buffer], birth=birth, death=death)

    def _live_bytes(self, length: int) -> tuple[int, ...]:
        """Sweeps births and deaths; a kernel may write over a buffer of the same size and shape that dies there."""
        change_bytes = [0] * (length + 1)
        dying: defaultdict[int, list[int]] = defaultdict(list)
        placed = self.elsewhere | self._guests()
        for buffer, birth in self.births.items():
            if buffer not in placed:
                death = self.deaths[buffer]
                change_bytes[birth] += self.size_bytes[buffer]
                change_bytes[death + 1] -= self.size_bytes[buffer]
                dying[death].append(buffer)
        for span in self.turns.spans(placed):
            change_bytes[span.birth] += span.size_bytes
            change_bytes[span.death + 1] -= span.size_bytes
        live_bytes = list(accumulate(change_bytes[:length]))
        for buffer in self.in_place - placed:
            at, size_bytes = self.births[buffer], self.size_bytes[buffer]
            for i, other in enumerate(dying.get(at, ())):
                if self.births[other] < at and self.size_bytes[other] == size_bytes and other not in self.flat:
                    del dying[at][i]
                    live_bytes[at] -= size_bytes
                    break
        for at, workspace_bytes in self.workspace_bytes.items():
            live_bytes[at] += workspace_bytes
        return tuple(live_bytes)
