"""First pass of a replay: the kernels that a schedule runs, what each reads and writes, and its seconds.

A kernel runs where a materialised instance is written: it reads the instance's sources and writes it. Any other op is
part of the kernels that read its results, and its arithmetic is added to theirs. What devices exchange takes the time
of the links, and nothing hides it; a clone of a product gathers no operand anew, as its gradients need the same
operands gathered. The body of a loop is run once, and its seconds count for every iteration.

Loops over the same array share a kernel (sibling fusion, also called multi-output fusion, `SharedPasses`):

1. A loop over elements joins the last kernel that went over its largest operand, and reads that operand for free.
2. It joins nothing where it needs what a kernel after that one writes, or a barrier in between hands on. If the kernel
   is a clone's, and its results do not lead to the loop, the two share a kernel all the same: XLA merges loops that
   read one array and do not depend on each other, whatever the order in which they are written. The clone then runs
   where the loop does, and what reads its result runs later (`SharedPasses.postponed`): a recomputed activation and the
   derivative of the activation are one kernel, and the cotangent that both products of a layer read lives until then.
   Operands that products compute on what they load are in no other kernel.
3. It does not join the kernel of a reduction whose result it reads: all of the reduction must be done before. A
   reduction over complete rows does: a kernel holds the rows.
4. It does not join a kernel more than `_ONE_PASS` steps back. An update joins at any distance, and over any of its
   operands, which are all of one size: optimisers go over all parameters one after the other.
5. Loops of two bodies never join.
6. A loop that reads nothing (a dropout mask, drawn from a key) and the first loop that reads its result are one kernel.

Read after `fusion` and `rates`; `replay` asks.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from jaxckpt.cost.fusion_analysis import FusionAnalysis, SourceBytes
from jaxckpt.cost.fusion_rules import FusionRules
from jaxckpt.cost.rates import ArithmeticCosts, Rates
from jaxckpt.ir import Graph, Kind, Op, Phase
from jaxckpt.ir.regions import ALL_ITERATIONS, STACK
from jaxckpt.schedule import Barrier, Move, Run, Schedule, ScheduleStep

_ONE_PASS = 48
"""Steps within which loops over the same array share one pass over it (the maximum and the sum of a softmax, the mean
and the variance of a normalisation). The median error of seconds is 4.7% with 12, and 4.0% with 24, 48 and 96; the mean
one 5.9%, 6.3%, 6.5% and 6.5% (`python -m benchmarks.constants`)."""


class StepKernel(NamedTuple):
    """A kernel, or the part of a shared one that a step adds; it reads so many bytes of each buffer.

    The seconds are those of all iterations of the loops around.
    """

    reads: SourceBytes
    writes: Sequence[int]
    seconds: float


@dataclass(slots=True)
class _SharedKernel:
    """A kernel, by the steps that run in it, what they write, and the seconds of its traffic and its arithmetic."""

    steps: list[int] = field(default_factory=list)
    written: list[int] = field(default_factory=list)
    traffic_s: float = 0.0
    arithmetic_s: float = 0.0


class SharedPasses:
    """The kernels of one schedule that are loops over elements, in the order of its steps.

    Attributes:
      in_tuples: Buffers that a kernel returns together with others.
      together: For each step whose loop joins a kernel the buffers that this kernel has by then.
      postponed: For each step that runs later than where it stands, behind a loop that its kernel is shared with, the
        step at which it runs.
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
        self.postponed: dict[int, int] = {}
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
        with all loops, predicted bytes of 19 steps of `benchmarks.model_error` were as close, and seconds further off.
        """
        largest_bytes, last_pass = max(reads.values(), default=0), self._last_pass
        for source, size_bytes in reads.items():
            other = last_pass.get(source)
            if other is None or size_bytes < largest_bytes or not at - _ONE_PASS <= other < kernel:
                continue
            shared, last = self._kernels[other], self._last_loop[source]
            runs_elsewhere = last not in shared.steps
            if runs_elsewhere or self._operands(last)[0].isdisjoint(self._operands(at)[0]):
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
    def _step_of(self) -> dict[int, int]:
        """For each instance the step that writes it."""
        return {instance: at for at, step in enumerate(self._steps) for instance in step.writes}

    def _operands(self, at: int) -> tuple[set[int], set[int]]:
        """The instances that the kernel of a step reads, and its ops; behind each barrier a buffer is another one."""
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
        return found, ops

    def _is_loaded(self, at: int) -> bool:
        """True for a loop that products compute on what they load: cheap ops of one array, as it lies, and arguments.

        XLA puts these into the kernels of products before it merges loops.
        """
        step, fusion, graph = self._steps[at], self._fusion, self._fusion.rules.graph
        if not (isinstance(step, Run) and step.op in fusion.rules.products.only_for_products):
            return False
        operands, ops = self._operands(at)
        arguments = frozenset(graph.inputs)
        arrays = [instance for instance in operands if not arguments.issuperset(fusion.sources[instance])]
        is_cheap = fusion.rules.expensive.isdisjoint(ops) and all(graph.ops[op].primitive != "transpose" for op in ops)
        return is_cheap and len(arrays) == 1

    def _postpone(self, shared: _SharedKernel, loops: Sequence[int], kernel: int, at: int) -> bool:
        """Lets loops of a kernel run in a later one that a step is in, unless what they write leads to this step."""
        steps = self._steps
        are_clones = all(isinstance(step := steps[loop], Run) and step.is_clone for loop in loops)
        if not are_clones or any(map(self._is_loaded, loops)):
            return False
        written = [instance for loop in loops for instance in steps[loop].writes]
        dependent, behind = set(written), list[int]()
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
        self.postponed.update(dict.fromkeys(behind, runs_behind))
        self.postponed.update(dict.fromkeys(loops, kernel))
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


class LibraryProducts:
    """The products of one schedule that a library computes, and the kernels behind them (rule 9 of `fusion`).

    Attributes:
      handed_bytes: For each step that ends the epilogue of such a product what the library hands on to it.
    """

    def __init__(self, fusion: FusionAnalysis, rates: Rates):
        self.handed_bytes: dict[int, int] = {}
        self._fusion = fusion
        self._rates = rates
        self._inside: dict[int, tuple[int, int]] = {}
        """For each result of a product, and of an op in its epilogue, the bytes that are handed on, and those that the
        product reads."""
        self._read_bytes: dict[int, int] = {}
        """For each step of `handed_bytes` what the product reads."""

    def run(self, at: int, step: Run, reads: SourceBytes) -> None:
        """Follows a product's result through its epilogue; a kernel reads so many bytes of each buffer."""
        fusion, inside = self._fusion, self._inside
        if step.op in fusion.rules.products.library and step.writes[0] in fusion.library_results:
            inside[step.writes[0]] = 0, sum(reads.values())
            return
        if not inside or len(step.writes) != 1:
            return
        (written,) = step.writes
        read = next((i for i in step.reads if i in inside), None)
        is_inside = written in fusion.inside_products
        if read is None or not (is_inside or written in fusion.epilogue_ends):
            return
        handed_bytes, read_bytes = inside[read]
        if not handed_bytes and written not in fusion.library_results:
            handed_bytes = fusion.size_bytes[read]
        if is_inside:
            inside[written] = handed_bytes, read_bytes
        elif handed_bytes:
            self.handed_bytes[at], self._read_bytes[at] = handed_bytes, read_bytes

    def kernels_s(self, at: int, traffic_bytes: int, arithmetic_s: float) -> float:
        """Seconds of a product with its epilogue: of one kernel, or of the library's and the one behind it."""
        if not (handed_bytes := self.handed_bytes.get(at, 0)):
            return self._rates.kernel_s(traffic_bytes, arithmetic_s)
        read_bytes = self._read_bytes[at]
        product_s = self._rates.kernel_s(read_bytes + handed_bytes, arithmetic_s)
        return product_s + self._rates.kernel_s(traffic_bytes - read_bytes + handed_bytes)


class PaddedOperands:
    """Operands of the products of a schedule that are copied into longer arrays (`padding`).

    Attributes:
      size_bytes: For each step with such a product the bytes of the copies.
    """

    def __init__(
        self, arithmetic: ArithmeticCosts, sources: Sequence[SourceBytes], instance_bytes: Sequence[int]
    ) -> None:
        self.size_bytes: dict[int, int] = {}
        self._arithmetic = arithmetic
        self._sources, self._instance_bytes = sources, instance_bytes
        self._read_by_clones: set[int] = set()
        """Buffers that recomputed products read."""

    def run(self, at: int, step: Run) -> None:
        """Counts the operands of a product, after all products before it."""
        operands = [self._sources[instance] for instance in step.reads]
        if step.is_clone:
            self._read_by_clones.update(*operands)
        copied_bytes = self._arithmetic.padding_bytes[step.op]
        for position in self._arithmetic.padded_at_once[step.op]:
            if not self._read_by_clones.isdisjoint(operands[position]):
                copied_bytes += self._instance_bytes[step.reads[position]]
        if copied_bytes:
            self.size_bytes[at] = copied_bytes


class ScheduleKernels:
    """The kernels of a schedule, by step.

    Attributes:
      by_step: For each step the kernel that it starts, or adds to; None where it runs in later ones, or is no op.
      sources: For each instance the buffers that are read to have it; a buffer is its own source.
      on_host: Instances on the host, outside of loops.
      recompute_s: Seconds of the kernels of clones.
      padded: The operands of products that are copied into longer arrays.
      library: What the products of a library hand on to the kernels behind them.
      chain_s: For each instance that is not in memory the seconds of the arithmetic that leads to it.
    """

    def __init__(self, graph: Graph, schedule: Schedule, rules: FusionRules, arithmetic: ArithmeticCosts, rates: Rates):
        self.graph = graph
        self.schedule = schedule
        self.rules = rules
        self.rates = rates
        self.arithmetic = arithmetic
        self.fusion = FusionAnalysis(rules, schedule.steps, schedule.origin, schedule.outputs)
        self.sources = self.fusion.sources
        self.passes = SharedPasses(schedule.steps, self.fusion, rates)
        self.library = LibraryProducts(self.fusion, rates)
        self.chain_s = [0.0] * len(schedule.origin)
        self.on_host: set[int] = set()
        self.padded = PaddedOperands(arithmetic, self.sources, self.size_bytes)
        self.recompute_s = 0.0
        self.by_step: list[StepKernel | None] = [None] * len(schedule.steps)
        loop: int | None = None
        for at, step in enumerate(schedule.steps):
            if step.loop != loop:
                loop = step.loop
                self.passes.enter_loop()
            if isinstance(step, Run):
                self.by_step[at] = self._run(at, step)
            elif isinstance(step, Barrier):
                self._barrier(at, step)
            else:
                self._move(step)

    @property
    def size_bytes(self) -> list[int]:
        """Bytes of each instance."""
        return self.fusion.size_bytes

    def _barrier(self, at: int, step: Barrier) -> None:
        """Passes instances on in the buffers that they are in."""
        sources, size_bytes = self.sources, self.size_bytes
        for read, write in zip(step.reads, step.writes, strict=True):
            size_bytes[write] = size_bytes[read]
            if read in self.on_host:
                self.on_host.add(write)
            else:
                sources[write] = sources[read]
            self.passes.pass_barrier(at, sources[read])

    def _move(self, step: Move) -> None:
        """A value on the host has no buffer; one that is loaded, a shard and a gathered value are buffers."""
        (read,), (write,) = step.reads, step.writes
        sources, size_bytes = self.sources, self.size_bytes
        size_bytes[write] = size_bytes[read]
        if step.decision.on_host:
            if not step.restores:
                if step.loop is None:
                    self.on_host.add(write)
                return
        else:
            parts = self.graph.axis_size(step.decision.axis or "")
            size_bytes[write] = size_bytes[read] * parts if step.restores else size_bytes[read] // parts
        sources[write] = {write: size_bytes[write]}

    def _run(self, at: int, step: Run) -> StepKernel | None:
        fusion, chain_s, before_s = self.fusion, self.chain_s, 0.0
        reads, materialised = fusion.run(step), fusion.materialised
        if fusion.rules.draws:
            reads = {source: read_bytes for source, read_bytes in reads.items() if source in materialised}
        for instance in step.reads:  # far quicker than `max` over a generator
            if chain_s[instance] > before_s:
                before_s = chain_s[instance]
        arithmetic_s = max(self.arithmetic.vector_s[step.op] + before_s, self.arithmetic.matrix_s[step.op])
        written = []
        for instance in step.writes:
            if instance in materialised:
                written.append(instance)
            else:
                chain_s[instance] = arithmetic_s
        op = self.graph.ops[step.op]
        if op.kind is Kind.CONTRACTION:
            self.padded.run(at, step)
        self.library.run(at, step, reads)
        if not written and not op.effects:
            return None
        seconds = self._seconds(at, op, step, reads, written, arithmetic_s)
        if step.is_clone or (step.loop is not None and self.graph.is_in_clone(step.loop)):
            self.recompute_s += seconds
        return StepKernel(reads, written, seconds)

    def _seconds(
        self, at: int, op: Op, step: Run, reads: SourceBytes, written: Sequence[int], arithmetic_s: float
    ) -> float:
        traffic_bytes = self._traffic_bytes(op, step, reads, written)
        if parts_bytes := self.arithmetic.parts_bytes[op.id]:
            result_bytes = self.graph.values[op.writes[0]].size_bytes
            traffic_bytes += parts_bytes - result_bytes
        kernel = at
        is_epilogue = not self.fusion.epilogue_ends.isdisjoint(written)
        if op.id in self.fusion.rules.loops and not is_epilogue and not self.fusion.holds_rows(step):
            kernel, kernel_s = self.passes.join(at, op, reads, written, traffic_bytes, arithmetic_s)
        elif ALL_ITERATIONS in op.effects:
            kernel_s = 0.0
        else:
            kernel_s = self.library.kernels_s(at, traffic_bytes, arithmetic_s)
        if padding_bytes := self.padded.size_bytes.get(at):
            kernel_s += self.rates.kernel_s(2 * padding_bytes)
        if parts_bytes:
            kernel_s += self.rates.kernel_s(parts_bytes + result_bytes)
        self.passes.write(at, kernel, op, written)
        if op.exchange_bytes:
            kernel_s += self.rates.exchange_s(op.exchange_bytes - (op.gathered_bytes if step.is_clone else 0))
        return kernel_s if step.loop is None else kernel_s * self.graph.runs_per_step(step.loop)

    def _traffic_bytes(self, op: Op, step: Run, reads: SourceBytes, written: Sequence[int]) -> int:
        """Bytes that one run of a kernel reads and writes.

        A scatter goes over its updates, and over as much of what it updates. The loop that fills a stack writes it.
        """
        size_bytes, sources = self.fusion.size_bytes, self.fusion.sources
        if op.primitive == STACK:
            return 0
        if op.kind is Kind.SCATTER and len(step.reads) > 1:
            base, updates = step.reads[0], step.reads[1 if op.primitive == "dynamic_update_slice" else -1]
            others = sum(size for source, size in reads.items() if source not in sources[base])
            return others + 2 * size_bytes[updates]
        return sum(reads.values()) + sum([size_bytes[instance] for instance in written]) + op.traffic_bytes
