"""First pass of a replay: the kernels that a schedule runs, what each reads and writes, and its seconds.

A kernel runs where a materialised instance is written: the kernel reads the sources of the instance and writes the
instance. Any other op is part of the kernels that read its results, and its arithmetic is added to theirs. What devices
exchange takes the time of the links, and nothing hides it; a clone of a product gathers no operand anew, as its
gradients need the same operands gathered. The body of a loop is run once, and its seconds count for every iteration.

Loops over the same array share a kernel (`shared_passes`).

Read after `shared_passes` and `rates`; used by `replay`.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from jaxckpt.cost.fusion_analysis import FusionAnalysis, SourceBytes
from jaxckpt.cost.fusion_rules import FusionRules
from jaxckpt.cost.merged_products import merged_products
from jaxckpt.cost.rates import ArithmeticCosts, Rates
from jaxckpt.cost.shared_passes import SharedPasses
from jaxckpt.ir import Graph, Kind, Op
from jaxckpt.ir.regions import ALL_ITERATIONS, STACK
from jaxckpt.schedule import Barrier, Move, Run, Schedule
from jaxckpt.schedule.initialisers import scatters_fused_with_add
from jaxckpt.schedule.layout import Layouts


class StepKernel(NamedTuple):
    """A kernel, or the part of a shared one that a step adds; it reads so many bytes of each buffer.

    The seconds are those of all iterations of the loops around.
    """

    reads: SourceBytes
    writes: Sequence[int]
    seconds: float


class _Product(NamedTuple):
    """A product of a library, with what its epilogue so far hands on, and the product's own arithmetic."""

    handed_bytes: int
    read_bytes: int
    arithmetic_s: float


class LibraryProducts:
    """The products of one schedule that a library computes, with the kernels behind them (rule 9 of `fusion`).

    Products that are merged are launched together.
    """

    def __init__(self, fusion: FusionAnalysis, rates: Rates):
        self._fusion = fusion
        self._rates = rates
        self._inside: dict[int, _Product] = {}
        """For each result of a product, and of an op in its epilogue, the product."""
        self._products: dict[int, _Product] = {}
        """For each step that ends an epilogue with a kernel of its own the product."""
        self._groups = fusion.rules.graph.once(merged_products)
        self._launched = set[tuple[frozenset[int], bool]]()
        """The merged products that are launched, of clones or not."""

    def is_launched(self, step: Run) -> bool:
        """True for a product that runs in the kernel of an earlier one; else its group is launched now."""
        if (group := self._groups.get(step.op)) is None:
            return False
        is_launched = (group, step.is_clone) in self._launched
        self._launched.add((group, step.is_clone))
        return is_launched

    def handed_bytes(self, at: int) -> int:
        """The bytes that a library hands on to the kernel behind its product, where a step ends the epilogue."""
        return product.handed_bytes if (product := self._products.get(at)) is not None else 0

    def run(self, at: int, step: Run, reads: SourceBytes, arithmetic_s: float) -> None:
        """Follows a product's result through its epilogue; a kernel reads so many bytes of each buffer."""
        fusion, inside = self._fusion, self._inside
        if step.op in fusion.rules.products.library and step.writes[0] in fusion.library_results:
            inside[step.writes[0]] = _Product(0, sum(reads.values()), arithmetic_s)
            return
        if not inside or len(step.writes) != 1:
            return
        (written,) = step.writes
        read = next((i for i in step.reads if i in inside), None)
        is_inside = written in fusion.inside_products
        if read is None or not (is_inside or written in fusion.epilogue_ends):
            return
        product = inside[read]
        if not product.handed_bytes and written not in fusion.library_results:
            product = product._replace(handed_bytes=fusion.size_bytes[read])
        if is_inside:
            inside[written] = product
        elif product.handed_bytes:
            self._products[at] = product

    def kernels_s(self, at: int, traffic_bytes: int, arithmetic_s: float) -> float:
        """Seconds of a product with its epilogue: of one kernel, or of the library's and the one behind it."""
        if (product := self._products.get(at)) is None:
            return self._rates.kernel_s(traffic_bytes, arithmetic_s)
        product_s = self._rates.kernel_s(product.read_bytes + product.handed_bytes, product.arithmetic_s)
        behind_bytes = traffic_bytes - product.read_bytes + product.handed_bytes
        return product_s + self._rates.kernel_s(behind_bytes, arithmetic_s - product.arithmetic_s)


class PaddedOperands:
    """Operands of the products of a schedule that are copied into longer arrays (`padding`).

    Attributes:
      size_bytes: For each step with such a product the bytes of the copies.
    """

    def __init__(
        self,
        rules: FusionRules,
        arithmetic: ArithmeticCosts,
        origin: Sequence[int],
        sources: Sequence[SourceBytes],
        sizes: Sequence[int],
    ) -> None:
        self.size_bytes: dict[int, int] = {}
        self._rules, self._arithmetic, self._origin = rules, arithmetic, origin
        self._sources, self._instance_bytes = sources, sizes
        self._read_by_others: set[int] = set()
        """Buffers that recomputed products read, and forward ones that cannot compute them of what they load."""

    def run(self, at: int, step: Run) -> None:
        """Counts the operands of a product, after all products before it."""
        graph, loaded = self._rules.graph, self._rules.products.loaded_operands
        operands = [self._sources[instance] for instance in step.reads]
        copied_bytes = self._arithmetic.padding_bytes[step.op]
        for position in self._arithmetic.padded_at_once[step.op]:
            if not self._read_by_others.isdisjoint(operands[position]):
                copied_bytes += self._instance_bytes[step.reads[position]]
        for instance, operand in zip(step.reads, operands, strict=True):
            if step.is_clone or graph.producer[self._origin[instance]] not in loaded:
                self._read_by_others.update(operand)
        if copied_bytes:
            self.size_bytes[at] = copied_bytes


class ScheduleKernels:
    """The kernels of a schedule, by step.

    Attributes:
      by_step: For each step the kernel that it starts, or adds to; None where the op runs in later ones, and for
        barriers and copies.
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
        self.padded = PaddedOperands(rules, arithmetic, schedule.origin, self.sources, self.size_bytes)
        self.recompute_s = 0.0
        self.by_step: list[StepKernel | None] = [None] * len(schedule.steps)
        self._delay_concatenations()
        loop: int | None = None
        for at, step in enumerate(self.fusion.joined.steps):
            if step.loop != loop:
                loop = step.loop
                self.passes.enter_loop()
            if isinstance(step, Run):
                self.by_step[at] = self._run(at, step)
            elif isinstance(step, Barrier):
                self._barrier(at, step)
            else:
                self._move(step)

    def _delay_concatenations(self) -> None:
        """Concatenations that products read in memory are written in front of the first of these (rule 10)."""
        concatenations, waiting = self.rules.products.concatenations, dict[int, int]()
        for at, step in enumerate(self.fusion.joined.steps if concatenations else ()):
            for instance in step.reads:
                if (concatenation := waiting.pop(instance, None)) is not None:
                    self.passes.runs_at[concatenation] = at
            if isinstance(step, Run) and step.op in concatenations:
                waiting[step.writes[0]] = at

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
        if step.trigger in self.fusion.materialised:  # the backward pass goes on with it behind the barrier
            self.passes.pass_barrier(at, sources[step.trigger])

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
        self.library.run(at, step, reads, arithmetic_s)
        seconds = self._copy_s(step) if fusion.joined.operands else 0.0
        if written or op.effects:
            seconds += self._seconds(at, op, step, reads, written, arithmetic_s)
        elif not seconds:
            return None
        if step.is_clone or (step.loop is not None and self.graph.is_in_clone(step.loop)):
            self.recompute_s += seconds
        return StepKernel(reads, written, seconds)

    def _seconds(
        self, at: int, op: Op, step: Run, reads: SourceBytes, written: Sequence[int], arithmetic_s: float
    ) -> float:
        traffic_bytes = self._traffic_bytes(op, step, reads, written)
        parts_bytes = self.rules.storing.parts_bytes.get(op.id, 0)
        if parts_bytes and written[0] in self.fusion.parts:
            parts_bytes = 0  # its readers add the parts up
        if parts_bytes:
            result_bytes = self.graph.values[op.writes[0]].size_bytes
            traffic_bytes += parts_bytes - result_bytes
        kernel = at
        is_epilogue = not self.fusion.epilogue_ends.isdisjoint(written)
        if op.id in self.fusion.rules.loops and not is_epilogue and not self.fusion.holds_rows(step):
            origin = self.schedule.origin
            transposes = self.graph.once(Layouts).transposes((origin[i] for i in reads), (origin[i] for i in written))
            kernel, kernel_s = self.passes.join(
                at, op, reads, written, traffic_bytes, arithmetic_s, transposes=transposes
            )
        elif ALL_ITERATIONS in op.effects:
            kernel_s = 0.0
        else:
            kernel_s = self.library.kernels_s(at, traffic_bytes, arithmetic_s)
        if self.library.is_launched(step):
            kernel_s -= self.rates.launch_s
        if padding_bytes := self.padded.size_bytes.get(at):
            kernel_s += self.rates.kernel_s(2 * padding_bytes)
        if parts_bytes:
            kernel_s += self.rates.kernel_s(parts_bytes + result_bytes)
        if copies := self._further_copies(at, op, written):
            kernel_s += copies * self.rates.kernel_s(traffic_bytes)
        self.passes.write(at, kernel, op, written)
        kernel_s += self.arithmetic.summed_s[op.id]
        if not step.is_clone:
            kernel_s += self.arithmetic.gathered_s[op.id]
        return kernel_s if step.loop is None else kernel_s * self.graph.runs_per_step(step.loop)

    def _copy_s(self, step: Run) -> float:
        """Seconds of the kernel that writes a concatenation for one product (rule 10)."""
        joined = self.fusion.joined.of(step)
        if joined is None or not joined.copy_bytes:
            return 0.0
        read_bytes = sum(self.fusion.merged_sources(joined.parts).values())
        runs = 1 if step.loop is None else self.graph.runs_per_step(step.loop)
        return runs * self.rates.kernel_s(read_bytes + joined.copy_bytes)

    def _further_copies(self, at: int, op: Op, written: Sequence[int]) -> int:
        """How many products besides the first have an operand computed for themselves (rule 9)."""
        products = self.rules.products
        if op.id not in products.loaded_operands or not self.passes.chains.is_loaded(at):
            return 0
        return max(0, len(self._reading_products[written[0]]) - 1)

    @cached_property
    def _reading_products(self) -> Mapping[int, list[int]]:
        """For each instance the products that read it."""
        found: defaultdict[int, list[int]] = defaultdict(list)
        for step in self.schedule.steps:
            if isinstance(step, Run) and step.op in self.rules.products.plain:
                for instance in set(step.reads):
                    found[instance].append(step.op)
        return found

    def _traffic_bytes(self, op: Op, step: Run, reads: SourceBytes, written: Sequence[int]) -> int:
        """Bytes that one run of a kernel reads and writes.

        A scatter goes over its updates, and over as much of what it updates. The op of a residual stack moves nothing:
        the loop itself writes the stack.
        """
        size_bytes, sources = self.fusion.size_bytes, self.fusion.sources
        if op.primitive == STACK:
            return 0
        if scatter := self.graph.once(_scatters).get(op.id):
            base = step.reads[int(op is not scatter and op.reads[0] in scatter.writes)]
            updates = scatter.reads[1 if scatter.primitive == "dynamic_update_slice" else -1]
            others = sum(size for source, size in reads.items() if source not in sources[base])
            return others + 2 * self.graph.values[updates].size_bytes
        return sum(reads.values()) + sum([size_bytes[instance] for instance in written]) + op.traffic_bytes


def _scatters(graph: Graph) -> Mapping[int, Op]:
    """Scatters by the op whose kernel carries them out: themselves, or the addition that they are fused with."""
    fused = graph.once(scatters_fused_with_add)
    return {
        graph.readers[op.writes[0]][0] if op.id in fused else op.id: op
        for op in graph.ops
        if op.kind is Kind.SCATTER and len(op.reads) > 1
    }
