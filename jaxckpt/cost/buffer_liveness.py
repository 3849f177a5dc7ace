"""Second pass of a replay: liveness analysis, the live range of every buffer.

A buffer lives from the kernel that writes it to the last kernel that reads it, directly or through a chain.

1. A barrier does not end a buffer: it has another instance from then on.
2. A buffer that is copied to the host lives until the copy is waited for; one that is loaded is a new buffer.
3. What a loop reads and does not write lives until the loop is over, and a residual stack from the beginning of the one
   loop to the end of the other (`loop_liveness`).
4. Zeros that a scatter adds to are kept from the first scatter to the last one that begins with zeros of that size and
   type, unless they wait for something: a compiler makes them once.

Every step gets the events of the clock here too, in their order: slices of stacks are copied where a kernel needs them
in memory, then the kernel runs, then it waits for what it reads and is still on its way.

Read after `kernels` and `loop_liveness`; `replay` asks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from jaxckpt.cost.branch_residuals import Span
from jaxckpt.cost.clock import ClockEvent, CopyInLoop, Load, PassOn, Store, Wait
from jaxckpt.cost.fusion_analysis import SourceBytes
from jaxckpt.cost.fusion_rules import FusionRules
from jaxckpt.cost.kernels import ScheduleKernels, StepKernel
from jaxckpt.cost.loop_liveness import LoopLiveness
from jaxckpt.cost.rates import Rates
from jaxckpt.cost.roofline import ArithmeticCosts
from jaxckpt.ir import Graph, Kind, Offload, Op, Trait
from jaxckpt.ir.regions import STACK
from jaxckpt.schedule import Barrier, Move, Run, Schedule

_WRITES_IN_PLACE = frozenset({Kind.ELEMENTWISE, Kind.SCATTER, Kind.VIEW})
_FLAT, _STACKED = 2, 3
"""Dimensions of a matrix, and of a stack of them."""


@dataclass(slots=True, kw_only=True)
class Buffers:
    """The buffers of a schedule, as instances, and the events of its steps.

    Attributes:
      size_bytes: Of each instance.
      births: For each buffer the step that writes it.
      deaths: For each buffer the last step that reads it.
      in_place: Buffers whose kernel may write over one that dies there.
      reshaped: Buffers that kernels of another shape made, which no later kernel writes over.
      workspace_bytes: For each step whose kernel needs some.
      loops: Spans that no instance has: stacks, slots, copies of slices.
      events: Of each step, in order.
      added_s: Seconds that steps take for what only later steps show, each with its step; the clock ran without them.
    """

    size_bytes: Sequence[int]
    loops: LoopLiveness
    events: list[list[ClockEvent]]
    births: dict[int, int] = field(default_factory=dict)
    deaths: dict[int, int] = field(default_factory=dict)
    in_place: set[int] = field(default_factory=set)
    reshaped: set[int] = field(default_factory=set)
    workspace_bytes: dict[int, int] = field(default_factory=dict)
    added_s: list[tuple[int, float]] = field(default_factory=list)


class BufferPass:
    """The pass over a schedule's steps."""

    def __init__(
        self,
        graph: Graph,
        schedule: Schedule,
        kernels: ScheduleKernels,
        rules: FusionRules,
        arithmetic: ArithmeticCosts,
        rates: Rates,
    ):
        self.graph = graph
        self.schedule = schedule
        self.kernels = kernels
        self.rules = rules
        self.padding_bytes = arithmetic.padding_bytes
        self.rates = rates
        self.loops = LoopLiveness(graph, schedule.steps)
        self.events: list[list[ClockEvent]] = [[] for _ in schedule.steps]
        self.buffers = Buffers(size_bytes=kernels.size_bytes, loops=self.loops, events=self.events)
        self.zeros: dict[tuple[object, ...], int] = {}
        """Zeros that scatters add to, the first of each size and type."""
        self.moved: set[int] = set()
        """Instances that moves write."""
        self.storing: dict[int, int] = {}
        """Instances on their way to the host, each with what it is copied from."""
        self.last_iteration: dict[int, Span] = {}
        """For each instance that is stored an iteration later what the last iteration has made."""

    def run(self) -> Buffers:
        """The live ranges of a schedule's buffers."""
        for at, step in enumerate(self.schedule.steps):
            if isinstance(step, Run):
                if (kernel := self.kernels.by_step[at]) is not None:
                    self._kernel(at, step, kernel)
            elif isinstance(step, Barrier):
                self._barrier(at, step)
            elif step.loop is None or not isinstance(step.decision, Offload):
                self._move(at, step)
            elif step.restores:
                self._load_in_loop(at, step, step.loop)
            else:
                self._store_in_loop(at, step, step.loop)
        self._stack_residuals()
        self._count_iterations()
        return self.buffers

    def _count_iterations(self) -> None:
        """Adds a launch to every iteration of a compiler's loop: a kernel of its own adds 1 to the loop's index."""
        for number, first in self.loops.first.items():
            loop = self.graph.loops[number]
            if loop.rolled and loop.branch is None:
                launches = self.graph.runs_per_step(number) / loop.unroll
                self.buffers.added_s.append((first, launches * self.rates.launch_s))

    def _kernel(self, at: int, step: Run, kernel: StepKernel) -> None:
        """The buffers that a kernel reads live until now, those that it writes from now on."""
        op, buffers = self.graph.ops[step.op], self.buffers
        if self.graph.loops:
            for position in self.rules.needed_operands[op.id]:
                self._copy_slices(at, step.reads[position])
        if needed_bytes := op.workspace_bytes + self.padding_bytes[op.id]:
            buffers.workspace_bytes[at] = needed_bytes
        self.events[at].append(kernel.seconds)
        self._read(at, kernel.reads)
        for instance in kernel.writes:
            self._write(at, step, op, instance)

    def _write(self, at: int, step: Run, op: Op, instance: int) -> None:
        buffers = self.buffers
        buffers.births[instance] = self.loops.birth(at, instance)
        buffers.deaths[instance] = at
        if not op.reads and step.loop is None and step.after is None and self._is_scattered_into(op):
            self._share_zeros(at, op, instance)
        if op.primitive == STACK:
            self._stack_results(step)
        if op.kind is Kind.CONTRACTION and self._is_flattened(op):
            buffers.reshaped.add(instance)
        if op.kind in _WRITES_IN_PLACE or self.loops.is_boundary(step):
            buffers.in_place.add(instance)

    def _read(self, at: int, reads: SourceBytes) -> None:
        births, deaths, size_bytes = self.buffers.births, self.buffers.deaths, self.buffers.size_bytes
        has_loops = bool(self.graph.loops)
        for source in reads:
            if source in births:
                if has_loops:
                    self._copy_slice(at, source, size_bytes[source], in_memory=False)
                    until = self.loops.death(at, source, size_bytes[source])
                    deaths[source] = max(deaths[source], until)
                else:
                    deaths[source] = at
            if source in self.moved:
                self.events[at].append(Wait(source))

    def _copy_slices(self, at: int, instance: int) -> None:
        """Slices of stacks that have to be in memory."""
        for source, size_bytes in self.kernels.sources[instance].items():
            self._copy_slice(at, source, size_bytes, in_memory=True)

    def _copy_slice(self, at: int, source: int, size_bytes: int, *, in_memory: bool) -> None:
        if runs := self.loops.copy_slice(at, source, size_bytes, in_memory=in_memory):
            self.events[at].append(runs * self.rates.kernel_s(2 * size_bytes))

    ### Barriers and moves

    def _barrier(self, at: int, step: Barrier) -> None:
        """Buffers pass under other instances; what is on the host has none once its copy is waited for."""
        events, is_store = self.events[at], step.why == "store"
        for instance in step.reads if is_store else ():
            self._read_stored(at, instance)
            events.append(Wait(instance))
        for read, write in zip(step.reads, step.writes, strict=True):
            sources = self.kernels.sources[read]
            if self.graph.loops:
                self._copy_slices(at, read)
            self._read(at, sources)
            if read in self.kernels.on_link:
                events.append(PassOn(read, write))
                source = self.storing.pop(read, None)
                if source is not None and not is_store:
                    self.storing[write] = source
            self.buffers.reshaped.difference_update(sources)

    def _move(self, at: int, step: Move) -> None:
        """A copy to the host or back, or a shard that is cut or gathered, outside of loops or in one."""
        (read,), (write,) = step.reads, step.writes
        buffers, size_bytes = self.buffers, self.buffers.size_bytes
        self._read(at, self.kernels.sources[read])
        if not isinstance(step.decision, Offload):
            moved_s = self.rates.kernel_s(size_bytes[read] + size_bytes[write])
            if step.restores:
                moved_s += self.rates.exchange_s(size_bytes[write] - size_bytes[read])
            self.events[at].append(self.graph.runs_per_step(step.loop) * moved_s)
        elif step.restores:
            self._read_stored(at, read)
            self.events[at].append(Load(read, write, size_bytes[read]))
            self.moved.add(write)
        else:
            self.storing[write] = read
            self.events[at].append(Store(write, size_bytes[read]))
            return
        buffers.births[write] = buffers.deaths[write] = at

    def _read_stored(self, at: int, instance: int) -> None:
        """Holds what is copied to the host until the copy is done."""
        if instance in self.storing:
            self._read(at, self.kernels.sources[self.storing[instance]])

    def _store_in_loop(self, at: int, step: Move, loop: int) -> None:
        """Copies an iteration's value to its stack on the host; if pipelined, that of the iteration before."""
        (read,), (write,) = step.reads, step.writes
        buffers, size_bytes = self.buffers, self.buffers.size_bytes[read]
        begin, end = self.loops.first[loop], self.loops.last[loop]
        if self.kernels.sources[read] == {read: size_bytes} and read in buffers.births:
            if step.is_pipelined:
                buffers.births[read] = begin
            buffers.deaths[read] = end
        else:
            self._read(at, self.kernels.sources[read])
            self.loops.hold(begin if step.is_pipelined else at, end, size_bytes)
            self.events[at].append(self._copy_s(step, size_bytes))
        if step.is_pipelined:
            self.last_iteration[write] = self.loops.hold(end, end, size_bytes)
        self._copy_in_loop(at, step, loop, size_bytes)

    def _load_in_loop(self, at: int, step: Move, loop: int) -> None:
        """Loads an iteration's value from its stack on the host; if pipelined, for the iteration that comes next."""
        (read,), (write,) = step.reads, step.writes
        buffers, size_bytes = self.buffers, self.buffers.size_bytes[read]
        begin, end = self.loops.first[loop], self.loops.last[loop]
        buffers.births[write], buffers.deaths[write] = begin, end if step.is_pipelined else at
        if step.is_pipelined:
            last = self.last_iteration[read]
            last.death = max(last.death, begin - 1)
            self.loops.hold(begin, end, size_bytes)
            self.events[at].append(self._copy_s(step, size_bytes))
        self._copy_in_loop(at, step, loop, size_bytes)

    def _copy_s(self, step: Move, size_bytes: int) -> float:
        return self.graph.runs_per_step(step.loop) * self.rates.kernel_s(2 * size_bytes)

    def _copy_in_loop(self, at: int, step: Move, loop: int, size_bytes: int) -> None:
        """Copies the value of an iteration; a stack on the host has those of all iterations."""
        (write,) = step.writes
        value = self.schedule.origin[write]
        stack_bytes = self.graph.residual_bytes(value) * size_bytes // self.graph.values[value].size_bytes
        copy = CopyInLoop(write, loop, size_bytes, stack_bytes, step.is_pipelined, to_host=not step.restores)
        self.events[at].append(copy)
        self.moved.add(write)

    ### Stacks

    def _stack_results(self, step: Run) -> None:
        """Fills the stack of a result that the step has of every iteration."""
        births, size_bytes = self.buffers.births, self.buffers.size_bytes
        for read in step.reads:
            if read in births:
                self._fill_stack(births[read], read, self.loops.stack_depth(read, step) * size_bytes[read])

    def _stack_residuals(self) -> None:
        """Writes residuals that a later loop reads to stacks, and transposes a stack that is read in another layout."""
        filled: set[int] = set()
        buffers, loops = self.buffers, self.loops
        for source, span in loops.residuals.items():
            birth = buffers.births.get(source)
            if source in loops.in_slots:
                continue
            if source in loops.result_stacks:
                stack = loops.result_stacks[source]
                buffers.deaths[stack] = max(buffers.deaths[stack], span.death)
            elif birth is not None and id(span) not in filled:
                self._fill_stack(birth, source, span.size_bytes)
                filled.add(id(span))
            if self.schedule.origin[source] in self.rules.transposed_stacks:
                at = loops.first_read[source]
                buffers.added_s.append((at, self.rates.kernel_s(2 * span.size_bytes)))
                buffers.workspace_bytes[at] = max(buffers.workspace_bytes.get(at, 0), span.size_bytes)

    def _fill_stack(self, at: int, source: int, stack_bytes: int) -> None:
        """The seconds of a stack: it is filled with zeros, then every iteration copies its value into it.

        A loop over elements writes to the stack itself where nothing else reads its result, neither this iteration nor,
        as its carry, the next one. What a branch makes is copied in every iteration, whichever branch runs.
        """
        step, loop = self.schedule.steps[at], self.loops.stacking_loop(source)
        self.buffers.added_s.append((at, self.rates.kernel_s(stack_bytes)))
        is_fused = isinstance(step, Run) and step.op in self.rules.loops and loop == step.loop
        if not is_fused or source in self.loops.read_inside:
            copy_s = self.rates.kernel_s(2 * self.buffers.size_bytes[source])
            self.buffers.added_s.append((at, self.graph.runs_per_step(loop) * copy_s))

    ### What a kernel writes

    def _is_scattered_into(self, op: Op) -> bool:
        readers = (self.graph.ops[r] for r in self.graph.readers[op.writes[0]])
        return any(r.kind is Kind.SCATTER and r.reads[0] == op.writes[0] for r in readers)

    def _share_zeros(self, at: int, op: Op, instance: int) -> None:
        value = self.graph.values[op.writes[0]]
        first = self.zeros.setdefault((op.primitive, op.detail, value.shape, value.dtype), instance)
        self.buffers.deaths[first] = max(self.buffers.deaths[first], at)

    def _is_flattened(self, op: Op) -> bool:
        """True if compilers compute a product as a matrix, or a stack of them, whose shape is not the value's."""
        dimensions = len(self.graph.values[op.writes[0]].shape)
        return dimensions > (_STACKED if Trait.BATCHED in op.traits else _FLAT)
