"""Second pass of a replay: liveness analysis, the live range of every buffer.

A buffer lives from the kernel that writes it to the last kernel that reads it, directly or through a chain.

1. A barrier does not end a buffer: it has another instance from then on.
2. A buffer that is copied to the host lives until the copy is waited for; one that is loaded is a new buffer,
   from where its load starts (`load_starts`).
3. What a loop reads and does not write lives until the loop is over, and a residual stack from the beginning of the one
   loop to the end of the other (`loop_liveness`).
4. Results of loops that share a kernel are there together: the first lives at least until the last.
5. Zeros that a scatter adds to are kept from the first scatter to the last one that begins with zeros of that size and
   type, unless they wait for something: a compiler makes them once.
6. What the product of a weight's gradient reads lives until the gradient passes a barrier, if it is summed over
   devices: XLA postpones such products, to run the sums beside other kernels.

The clock runs along, since the order in a step matters to it: slices of stacks are copied where a kernel needs them in
memory, then the kernel runs, then it waits for what it reads and is still on its way. Seconds that steps take for what
only later steps show are added afterwards; the clock ran without them.

Read after `kernels`, `clock`, `load_starts` and `loop_liveness`; `replay` asks.
"""

from jaxckpt.cost.clock import StepClock
from jaxckpt.cost.fusion_analysis import SourceBytes
from jaxckpt.cost.kernels import ScheduleKernels, StepKernel
from jaxckpt.cost.load_starts import loads_by_start
from jaxckpt.cost.loop_liveness import LoopLiveness, Span
from jaxckpt.cost.rates import exchange_s
from jaxckpt.ir import Exchange, Graph, Kind, Op
from jaxckpt.ir.regions import END, STACK
from jaxckpt.schedule import Barrier, Move, Run, Schedule
from jaxckpt.schedule.passing import GradAccumulators

_WRITES_IN_PLACE = frozenset({Kind.ELEMENTWISE, Kind.SCATTER, Kind.VIEW})
_RETURN_TUPLES = frozenset({"conv_general_dilated", STACK, END})
"""Ops whose results are elements of tuples: cuDNN returns its scratch too, a loop all of its results."""


class PostponedProducts:
    """Products of gradients of weights that are summed over devices (rule 6)."""

    def __init__(self, graph: Graph, schedule: Schedule):
        self._summed = graph.once(GradAccumulators).summed
        self._origin = schedule.origin
        self._operands: dict[int, SourceBytes] = {}
        """For each gradient in memory, or view of one, what the kernels that make it read."""

    def run(self, kernel: StepKernel) -> None:
        """A kernel runs, the product of a gradient perhaps."""
        for instance in kernel.writes:
            if self._origin[instance] in self._summed:
                operands = dict(kernel.reads)
                for source in kernel.reads:
                    operands.update(self._operands.get(source, {}))
                self._operands[instance] = operands

    def pass_barrier(self, buffer: int) -> SourceBytes:
        """Operands that a compiler may read as late as where a buffer passes a barrier for the first time."""
        return self._operands.pop(buffer, {})


class BufferLiveness:
    """The buffers of a schedule, as instances.

    Attributes:
      size_bytes: Of each instance.
      births: For each buffer the step that writes it.
      deaths: For each buffer the last step that reads it.
      in_place: Buffers whose kernel may write over one that dies there. The entry is True for what a loop or a cond
        passes on, which may be written over an indirect buffer, too: a loop's initial carry, what each iteration makes
        of the carry and the loop's result are one buffer to XLA.
      indirect: Buffers that no kernel writes over, since none has an operand that defines them: elements of tuples,
        which loops, cuDNN's convolutions, cuBLAS and kernels of several results return. Behind a barrier also products
        that are computed with fewer axes: what reads them there has all axes.
      workspace_bytes: For each step whose kernel needs some.
      loops: Spans that no instance has: stacks, slots, copies of slices.
      clock: Times of the steps.
    """

    def __init__(self, graph: Graph, kernels: ScheduleKernels):
        self.graph = graph
        self.kernels = kernels
        self.size_bytes = kernels.size_bytes
        self.births: dict[int, int] = {}
        self.deaths: dict[int, int] = {}
        self.in_place: dict[int, bool] = {}
        self.indirect: set[int] = set()
        self.workspace_bytes: dict[int, int] = {}
        self.loops = LoopLiveness(graph, kernels.schedule.steps)
        self.clock = StepClock(graph, kernels.rates.host_bandwidth_bytes_per_s)
        self.zeros: dict[tuple[object, ...], int] = {}
        """Zeros that scatters add to, the first of each size and type."""
        self.storing: dict[int, int] = {}
        """Instances on their way to the host, each with what it is copied from."""
        self.postponed = PostponedProducts(graph, kernels.schedule) if graph.mesh else None
        self.last_iteration: dict[int, Span] = {}
        """For each instance that is stored an iteration later what the last iteration has made."""

        starts = loads_by_start(kernels.schedule, kernels.by_step)
        for at, step in enumerate(kernels.schedule.steps):
            for load in starts.get(at, ()):
                self._load(at, load)
            if kernels.by_step[at] is None and not graph.loops and isinstance(step, Run):
                self.clock.pass_step()
                continue
            self.clock.begin(step.loop)
            if isinstance(step, Run):
                if (kernel := kernels.by_step[at]) is not None:
                    self._kernel(at, step, kernel)
            elif isinstance(step, Barrier):
                self._barrier(kernels.passes.runs_at.get(at, at), step)
            elif step.loop is None or not step.decision.on_host:
                self._move(at, step)
            elif step.restores:
                self._load_in_loop(at, step, step.loop)
            else:
                self._store_in_loop(at, step, step.loop)
            self.clock.end([loop for loop in graph.path(step.loop) if at == self.loops.last[loop]])
        self._finish_stores()
        self._stack_residuals()
        self._count_iterations()

    def _finish_stores(self) -> None:
        """Waits at the end of the step for copies to the host that nothing has waited for: results that are there."""
        last = len(self.clock.seconds) - 1
        for instance in self.storing.keys() & set(self.kernels.schedule.outputs):
            self._read_stored(last, instance)
            self.clock.wait_at_end(instance)

    def _count_iterations(self) -> None:
        """Adds a launch to every iteration of a compiler's loop: a kernel of its own adds 1 to the loop's index."""
        for number, first in self.loops.first.items():
            loop = self.graph.loops[number]
            if loop.rolled and loop.branch is None:
                launches = self.graph.runs_per_step(number) / loop.unroll
                self.clock.seconds[first] += launches * self.kernels.rates.launch_s

    def _kernel(self, at: int, step: Run, kernel: StepKernel) -> None:
        """The buffers that a kernel reads live until now, those that it writes from now on."""
        op, kernels = self.graph.ops[step.op], self.kernels
        needed_bytes = op.workspace_bytes + kernels.padded.size_bytes.get(at, 0)
        needed_bytes += kernels.library.handed_bytes(at)
        if (joined := kernels.fusion.joined.of(step)) is not None:
            needed_bytes += joined.copy_bytes
        together = kernels.passes.together.get(at, ())
        at = kernels.passes.runs_at.get(at, at)
        if self.graph.loops:
            for position in kernels.rules.needed_operands[op.id]:
                self._copy_slices(at, step.reads[position])
        if needed_bytes:
            self.workspace_bytes[at] = needed_bytes
        self.clock.work(kernel.seconds)
        self._read(at, kernel.reads)
        if self.postponed is not None:
            self.postponed.run(kernel)
        if not self.graph.is_branched(step.loop):  # compiled branches take less; why is not known
            for instance in together:
                self.deaths[instance] = max(self.deaths[instance], at)
        holds_rows = kernels.fusion.holds_rows(step) or any(map(self._is_recomputed_row, kernel.reads))
        for instance in kernel.writes:
            self._write(at, step, op, instance, holds_rows=holds_rows)

    def _is_recomputed_row(self, buffer: int) -> bool:
        """True for a recomputed reduction over rows: XLA makes one kernel of it and its reader, which holds rows."""
        value = self.kernels.schedule.origin[buffer]
        return buffer != value and self.graph.producer[value] in self.kernels.rules.rows.row_reductions

    def _write(self, at: int, step: Run, op: Op, instance: int, *, holds_rows: bool) -> None:
        self.births[instance] = self.loops.birth(at, instance)
        self.deaths[instance] = at
        if not op.reads and step.loop is None and step.after is None and self._is_scattered_into(op):
            self._share_zeros(at, op, instance)
        if op.primitive == STACK:
            self._stack_results(step)
        fusion = self.kernels.fusion
        in_tuple = instance in fusion.library_results or instance in self.kernels.passes.in_tuples
        if in_tuple or op.primitive in _RETURN_TUPLES:
            self.indirect.add(instance)
        if instance in fusion.epilogue_ends or holds_rows:  # elementwise, but in the kernel of other ops
            return
        is_carry = op.carries > 0 and instance in step.writes[: op.carries]
        is_passed_on = is_carry or self.loops.is_boundary(step)
        if is_passed_on or op.kind in _WRITES_IN_PLACE:
            self.in_place[instance] = is_passed_on

    def _read(self, at: int, reads: SourceBytes) -> None:
        births, deaths, size_bytes = self.births, self.deaths, self.size_bytes
        has_loops, copied = bool(self.graph.loops), self.clock.copied
        for source in reads:
            if source in births:
                if has_loops:
                    self._copy_slice(at, source, size_bytes[source], in_memory=False)
                    until = self.loops.death(at, source, size_bytes[source])
                    deaths[source] = max(deaths[source], until)
                else:
                    deaths[source] = max(deaths[source], at)
            if source in copied:
                self.clock.wait(source)

    def _copy_slices(self, at: int, instance: int) -> None:
        """Slices of stacks that have to be in memory."""
        for source, size_bytes in self.kernels.sources[instance].items():
            self._copy_slice(at, source, size_bytes, in_memory=True)

    def _copy_slice(self, at: int, source: int, size_bytes: int, *, in_memory: bool) -> None:
        if runs := self.loops.copy_slice(at, source, size_bytes, in_memory=in_memory):
            self.clock.work(runs * self.kernels.rates.kernel_s(2 * size_bytes))

    ### Barriers and moves

    def _barrier(self, at: int, step: Barrier) -> None:
        """Buffers pass under other instances; what is on the host has none once its copy is waited for."""
        is_store = step.why == "store"
        for instance in step.reads:
            if is_store or (instance in self.storing and step.why != "load"):
                self._read_stored(at, instance)
                self.clock.wait(instance)
        for read, write in zip(step.reads, step.writes, strict=True):
            sources = self.kernels.sources[read]
            if self.graph.loops:
                self._copy_slices(at, read)
            self._read(at, sources)
            self.indirect.update(filter(self._has_merged_axes, sources))
            if self.postponed is not None:
                for source in sources:
                    self._read(at, self.postponed.pass_barrier(source))
            if read in self.kernels.on_host:
                self.clock.pass_on(read, write)
                stored = self.storing.pop(read, None)
                if stored is not None and not is_store:
                    self.storing[write] = stored

    def _has_merged_axes(self, buffer: int) -> bool:
        """True for the result of a product that is computed with fewer axes."""
        op = self.graph.producer[self.kernels.schedule.origin[buffer]]
        if op not in self.kernels.rules.products.merged_axes:
            return False
        return self.graph.ops[op].kind is Kind.CONTRACTION or buffer in self.kernels.fusion.epilogue_ends

    def _move(self, at: int, step: Move) -> None:
        """A copy to the host, a shard that is cut or gathered, or where a load may start (`_load`)."""
        (read,), (write,) = step.reads, step.writes
        rates, read_bytes, write_bytes = self.kernels.rates, self.size_bytes[read], self.size_bytes[write]
        self._read(at, self.kernels.sources[read])
        if step.decision.on_host:
            if step.restores:
                self._read_stored(at, read)
            else:
                self.storing[write] = read
                self.clock.store(write, read_bytes)
            return
        moved_s = rates.kernel_s(read_bytes + write_bytes)
        if step.restores:
            axis = step.decision.axis
            moved_s += exchange_s(self.graph, Exchange(write_bytes - read_bytes, (axis,) if axis else ()), rates)
        self.clock.work(self.graph.runs_per_step(step.loop) * moved_s)
        self.births[write] = self.deaths[write] = at

    def _load(self, at: int, step: Move) -> None:
        """A copy back from the host that starts at a step."""
        (read,), (write,) = step.reads, step.writes
        if self.kernels.schedule.origin[read] in self.graph.inputs:  # and the result is stored where it was
            self.clock.add_host_bytes(self.size_bytes[read])
        self.clock.load(read, write, self.size_bytes[read])
        self.births[write] = self.deaths[write] = at

    def _read_stored(self, at: int, instance: int) -> None:
        """Holds what is copied to the host until the copy is done."""
        if instance in self.storing:
            self._read(at, self.kernels.sources[self.storing[instance]])

    def _store_in_loop(self, at: int, step: Move, loop: int) -> None:
        """Copies an iteration's value to its stack on the host; if pipelined, that of the iteration before."""
        (read,), (write,) = step.reads, step.writes
        size_bytes = self.size_bytes[read]
        begin, end = self.loops.first[loop], self.loops.last[loop]
        if self.kernels.sources[read] == {read: size_bytes} and read in self.births:
            if step.is_pipelined:
                self.births[read] = begin
            self.deaths[read] = end
        else:
            self._read(at, self.kernels.sources[read])
            self.loops.hold(begin if step.is_pipelined else at, end, size_bytes)
            self.clock.work(self._copy_s(step, size_bytes))
        if step.is_pipelined:
            self.last_iteration[write] = self.loops.hold(end, end, size_bytes)
        stack_bytes = self._stack_bytes(write, size_bytes)
        self.clock.store_in_loop(write, loop, size_bytes, stack_bytes=stack_bytes, is_pipelined=step.is_pipelined)

    def _load_in_loop(self, at: int, step: Move, loop: int) -> None:
        """Loads an iteration's value from its stack on the host; if pipelined, for the iteration that comes next."""
        (read,), (write,) = step.reads, step.writes
        size_bytes = self.size_bytes[read]
        begin, end = self.loops.first[loop], self.loops.last[loop]
        self.births[write], self.deaths[write] = begin, end if step.is_pipelined else at
        if step.is_pipelined:
            last = self.last_iteration[read]
            last.death = max(last.death, begin - 1)
            self.loops.hold(begin, end, size_bytes)
            self.clock.work(self._copy_s(step, size_bytes))
        stack_bytes = self._stack_bytes(write, size_bytes)
        self.clock.load_in_loop(write, loop, size_bytes, stack_bytes=stack_bytes, is_pipelined=step.is_pipelined)

    def _copy_s(self, step: Move, size_bytes: int) -> float:
        return self.graph.runs_per_step(step.loop) * self.kernels.rates.kernel_s(2 * size_bytes)

    def _stack_bytes(self, instance: int, size_bytes: int) -> int:
        """Bytes of the values of all iterations in their stack on the host."""
        value = self.kernels.schedule.origin[instance]
        return self.graph.residual_bytes(value) * size_bytes // self.graph.values[value].size_bytes

    ### Stacks

    def _stack_results(self, step: Run) -> None:
        """Fills the stack of a result that the step has of every iteration."""
        births, size_bytes = self.births, self.size_bytes
        for read in step.reads:
            if read in births:
                self._fill_stack(births[read], read, self.loops.stack_depth(read, step) * size_bytes[read])

    def _stack_residuals(self) -> None:
        """Writes residuals that a later loop reads to stacks, and transposes a stack that is read in another layout."""
        filled: set[int] = set()
        loops, rates = self.loops, self.kernels.rates
        for source, span in loops.residuals.items():
            birth = self.births.get(source)
            if source in loops.in_slots:
                continue
            if source in loops.result_stacks:
                stack = loops.result_stacks[source]
                self.deaths[stack] = max(self.deaths[stack], span.death)
            elif birth is not None and id(span) not in filled:
                self._fill_stack(birth, source, span.size_bytes)
                filled.add(id(span))
            if self.kernels.schedule.origin[source] in self.kernels.rules.transposed_stacks:
                at = loops.first_read[source]
                self.clock.seconds[at] += rates.kernel_s(2 * span.size_bytes)
                self.workspace_bytes[at] = max(self.workspace_bytes.get(at, 0), span.size_bytes)

    def _fill_stack(self, at: int, source: int, stack_bytes: int) -> None:
        """The seconds of a stack: it is filled with zeros, then every iteration copies its value into it.

        A loop over elements writes to the stack itself where nothing else reads its result, neither this iteration nor,
        as its carry, the next one. What a branch makes is copied in every iteration, whichever branch runs.
        """
        kernels, loop = self.kernels, self.loops.stacking_loop(source)
        step, seconds = kernels.schedule.steps[at], self.clock.seconds
        seconds[at] += kernels.rates.kernel_s(stack_bytes)
        is_fused = isinstance(step, Run) and step.op in kernels.rules.loops and loop == step.loop
        if not is_fused or source in self.loops.read_inside:
            seconds[at] += self.graph.runs_per_step(loop) * kernels.rates.kernel_s(2 * self.size_bytes[source])

    ### What a kernel writes

    def _is_scattered_into(self, op: Op) -> bool:
        readers = (self.graph.ops[r] for r in self.graph.readers[op.writes[0]])
        return any(r.kind is Kind.SCATTER and r.reads[0] == op.writes[0] for r in readers)

    def _share_zeros(self, at: int, op: Op, instance: int) -> None:
        value = self.graph.values[op.writes[0]]
        first = self.zeros.setdefault((op.primitive, op.detail, value.shape, value.dtype), instance)
        self.deaths[first] = max(self.deaths[first], at)
