"""Fusion of a schedule: which instances are in memory, and what a kernel reads to compute the others.

First, passes over all steps find the instances that must be in memory (rules 1, 2, 4 to 8 and 10 of `fusion`) and the
kernels that read each instance. `FusionAnalysis.run` then decides, step by step, where results are: rule 3 counts
kernels, and which ops share a kernel follows from what must be in memory.

Read after `fusion_rules`; used by `fusion` and `kernels`.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from jaxckpt.cost.fusion_rules import FusionRules
from jaxckpt.cost.row_kernels import RowKernels
from jaxckpt.cost.shared_sources import SharedSources
from jaxckpt.ir import Graph, Kind
from jaxckpt.schedule import Barrier, Run, ScheduleStep

SourceBytes = Mapping[int, int]
"""Values in memory that a value is computed from, each with the bytes that are read of it."""

_SCALAR_BYTES = 8
"""A scalar of any type takes at most this: an epilogue may read its broadcast, whatever computes it."""
_ADDITIONS = frozenset({"add", "add_any"})
"""Ops that a library applies to its result, however much they read: `_BIAS` of `compiler.product_kernels`."""
_MANY = 4
"""Readers are counted up to here. With 2 the mean error of seconds is 6.0%, with 4 and 8 it is 5.4% (`python -m
benchmarks.constants`)."""


class _FusedProduct(NamedTuple):
    """A product that a library may compute, with the ops of its epilogue so far.

    Attributes:
      spare_bytes: The bytes that the fused kernel may still read and write before it waits for memory.
      only_adds: True if the epilogue only adds.
      results: Those of the product and of the ops behind it that the library applies.
      reads: What the fused kernel reads: an operand of the product is read once, though the epilogue needs it too.
    """

    spare_bytes: float
    only_adds: bool
    results: tuple[int, ...]
    reads: frozenset[int]

    @property
    def is_librarys(self) -> bool:
        """True if the library computes the product (rule 9)."""
        return self.only_adds or self.spare_bytes > 0


@dataclass(slots=True)
class HeldRows:
    """Instances of one schedule that kernels compute while they hold rows (rule 5).

    Attributes:
      figures: Results of the reductions in these kernels, and what is computed of those row by row.
      inside: Instances so far that such a kernel computes and does not write.
      added_up: Instances whose columns are added up.
      cut: Instances with which rows end, where several kernels go on with parts of each row.
    """

    figures: set[int] = field(default_factory=set)
    inside: set[int] = field(default_factory=set)
    added_up: set[int] = field(default_factory=set)
    cut: set[int] = field(default_factory=set)


class Readers(NamedTuple):
    """The kernels that read each instance.

    Attributes:
      kernels: For every instance the kernels, as what they write, up to `_MANY`.
      shares: For every instance the shares of it that kernels read, added up; None where no op reads a share.
      read_by_one: Instances that a single op reads, whose result is no larger: where kernels would compute both again,
        it is the result that is stored.
      shared: What the kernels read in any case.
    """

    kernels: Sequence[frozenset[int]]
    shares: Sequence[float] | None
    read_by_one: set[int]
    shared: SharedSources

    def times(self, instance: int) -> float:
        """How many kernels read an instance; those that read parts of it count as much as they read."""
        kernels = len(self.kernels[instance])
        return kernels if self.shares is None else min(kernels, max(1.0, self.shares[instance]))


class JoinedOperands(NamedTuple):
    """The operands of a product that takes in concatenations (rule 10), as instances.

    Attributes:
      others: Those that are no such concatenations.
      parts: What the concatenations join; of a broadcast what it repeats.
      copy_bytes: Of the concatenations that a kernel in front of the product writes for it; 0 if it loads the parts.
    """

    others: Sequence[int]
    parts: Sequence[int]
    copy_bytes: int


class JoinedSteps(NamedTuple):
    """The steps of a schedule; each product that takes in concatenations reads their parts (rule 10).

    Attributes:
      operands: Those of such products, by their results.
    """

    steps: Sequence[ScheduleStep]
    operands: Mapping[int, JoinedOperands]

    def of(self, step: Run) -> JoinedOperands | None:
        """The operands of a step that is such a product, else None."""
        return self.operands.get(step.writes[0]) if step.writes else None


class FusionAnalysis:
    """The instances in memory while steps run.

    Attributes:
      joined: The steps with the parts of concatenations in place of these.
      size_bytes: Of each instance.
      materialised: Instances that some step so far wrote to memory, and those that must be.
      sources: For every instance written so far what is read of memory to have it. Random bits that their reader draws
        are sources too, though not in memory: drawing them again is worth as much to rule 3 as reading them.
      readers: The kernels that read each instance.
      picks: For every table of gathers that pick each element several times how many times they do.
      parts: For each product whose parts are in memory, and not their sum, how many there are.
      siblings: Expensive instances whose readers are one kernel, each with what that kernel writes.
      epilogue_ends: Instances that products write behind elementwise ops.
      library_results: Instances that a library writes itself, with a bias or a relu or without.
      inside_products: Results of these products, and of such ops before the last.
      rows: What kernels that hold rows compute.
    """

    def __init__(
        self,
        rules: FusionRules,
        steps: Sequence[ScheduleStep],
        origin: Sequence[int],
        outputs: Sequence[int],
        *,
        is_unrolled: bool = False,
    ):
        graph = rules.graph
        self.rules = rules
        self.joined = _read_by_parts(rules, steps)
        steps = self.joined.steps
        self.size_bytes = [graph.values[v].size_bytes for v in origin]
        self.materialised = {*graph.inputs, *graph.constants, *outputs}
        self.rows = HeldRows()
        self.picks: dict[int, int] = {}
        self.parts: dict[int, int] = {}
        self.library_results = set[int]()
        self.epilogue_ends, self.inside_products = self._epilogues(steps, outputs)
        self._loop: dict[int, int | None] | None = {} if graph.loops and not is_unrolled else None
        """For every instance the loop in whose body a step writes it; None where there are no loops."""
        applied = self._materialise_required(steps, origin)
        self.sources: list[SourceBytes] = [{}] * len(self.size_bytes)
        for v in (*graph.inputs, *graph.constants):
            self.sources[v] = {v: self.size_bytes[v]}
        self.readers = self._reading_kernels(steps, applied)
        self.siblings = self._expensive_siblings(steps)

    def run(self, step: Run) -> SourceBytes:
        """Decides where the results of one step are; returns what its kernel reads, or draws."""
        # One function: it runs for every step of every replay, and a call costs more than a branch.
        op, materialised, sources, read = step.op, self.materialised, self.sources, step.reads
        reads = self.merged_sources(read) if len(read) > 1 else sources[read[0]] if read else {}
        if (parts_bytes := self.rules.storing.parts_bytes.get(op)) is not None:
            self._place_parts(step.writes[0], parts_bytes)
        if op in self.rules.partial_reads or op in self.rules.gathers:
            reads = self._read_part(step, reads)
        splits = len(step.writes) > 1 and op in self.rules.partial_reads
        for instance in step.writes:
            own = self._at_most(self.size_bytes[instance], reads) if splits else reads
            if instance not in materialised:
                is_added_up = instance in self.rows.added_up and self.holds_rows(step)
                has_readers = len(self.readers.kernels[instance]) > 1 or instance in self.picks
                is_inside = not has_readers or instance in self.siblings or instance in self.readers.read_by_one
                if not is_added_up and (is_inside or not self._is_cheaper_stored(step, instance, own)):
                    sources[instance] = {instance: self.size_bytes[instance]} if op in self.rules.draws else own
                    is_folded = instance in self.rows.figures and op in self.rules.rows.row_reductions
                    if is_folded or self.holds_rows(step):
                        self.rows.inside.add(instance)
                    continue
                materialised.add(instance)
            sources[instance] = {instance: self.size_bytes[instance]}
        return reads

    def _place_parts(self, product: int, parts_bytes: int) -> None:
        """Rule 3: keeps the parts of a product in memory, where its readers add them up.

        Where its sum must be in memory, or is cheaper there, a kernel of its own adds up the parts.
        """
        if product in self.materialised:
            return
        self.materialised.add(product)
        kernels = min(_MANY, self.readers.times(product))
        if self.size_bytes[product] * kernels + self.rules.storing.launch_bytes > (kernels - 1) * parts_bytes:
            self.parts[product] = parts_bytes // self.size_bytes[product]
            self.size_bytes[product] = parts_bytes

    def holds_rows(self, step: Run) -> bool:
        """True if row reductions are fused into the kernel of a step."""
        return bool(self.rows.inside) and not self.rows.inside.isdisjoint(step.reads)

    def _is_cheaper_stored(self, step: Run, instance: int, reads: SourceBytes) -> bool:
        """Rule 3: F + B + (k - 1) B + L <= k F, which is k B + L <= (k - 1) F; less where kernels share sources."""
        storing, op = self.rules.storing, step.op
        if op in self.rules.never_materialised or instance in self.rows.figures:
            return False
        kernels = min(_MANY, self.readers.times(instance) + self.picks.get(instance, 0))
        source_bytes = float(sum(reads.values()))
        if op in storing.expensive and reads:
            source_bytes = max(source_bytes, storing.expensive[op])
        launch_bytes = 0.0 if step.loop is None else storing.launch_bytes
        stored_bytes = self.size_bytes[instance] * kernels + launch_bytes
        if stored_bytes > (kernels - 1) * source_bytes:
            return False
        # For four kernels and more, predicted totals of batch norm and of Q-learning became 5% to 11% too small.
        if op in storing.expensive or len(reading := self.readers.kernels[instance]) >= _MANY:
            return True
        shared_bytes = self.readers.shared.read_anyway_bytes(instance, reading, reads)
        return stored_bytes <= (kernels - 1) * source_bytes - shared_bytes

    def _read_part(self, step: Run, reads: SourceBytes) -> SourceBytes:
        """Of the sources of what a gather or a slice reads, the part of a table or an array that is read."""
        written_bytes = sum(self.size_bytes[i] for i in step.writes)
        if step.op not in self.rules.gathers:
            return self._at_most(written_bytes, reads)
        table, share = self.sources[step.reads[0]], written_bytes / max(1, self.size_bytes[step.reads[0]])
        return {value: int(share * size) if value in table else size for value, size in reads.items()}

    def _at_most(self, most_bytes: int, reads: SourceBytes) -> SourceBytes:
        """The same sources, so many bytes of each at most; of a product in parts so many of each part."""
        parts = self.parts
        return {source: min(size, most_bytes * parts.get(source, 1)) for source, size in reads.items()}

    def merged_sources(self, reads: Sequence[int]) -> SourceBytes:
        """The sources of some instances; of two readings of one source the larger one."""
        first, larger = self.sources[reads[0]], dict[int, int]()
        for read in reads[1:]:
            for value, read_bytes in self.sources[read].items():
                if read_bytes > first.get(value, -1) and read_bytes > larger.get(value, -1):
                    larger[value] = read_bytes
        return {**first, **larger} if larger else first

    ### What must be in memory

    def _materialise_required(self, steps: Sequence[ScheduleStep], origin: Sequence[int]) -> set[int]:
        """Rules 1, 2, 4 to 8 and 10; returns the results of expensive ops that matrix products apply, and their views.

        `shown` is what an instance is once same-size views are stripped; `loaded` once elementwise ops are stripped,
        too, that a matrix product applies to what it loads.
        """
        # One function: it runs for every step of every replay, and a call costs more than a branch.
        rules, shown = self.rules, list(range(len(self.size_bytes)))
        loaded = list(shown)
        self.materialised.update(self.epilogue_ends)
        read_later, read_by_clones = self._read_after_forward(steps), self._read_by_clones(steps)
        has_loops, needed_operands = self._loop is not None, rules.needed_operands
        views, loaded_operands, dots = rules.same_size_views, rules.products.loaded_operands, rules.products.dots
        has_joined, passed, applied = bool(self.joined.operands), set[int](), set[int]()
        figures, products = self.rows.figures, set[int]()
        library = rules.products.library
        rows = rules.rows
        ends_rows = bool(rows.row_reductions and (rules.draws or rows.foreign or rows.cuts or has_loops))
        row_kernels = RowKernels(rules, steps, origin, figures, self._loop) if ends_rows else None
        for step in steps:
            if has_loops:
                self._materialise_across_loops(step, shown)
            if not isinstance(step, Run):
                self.materialised.update(shown[i] for i in step.reads)
                if isinstance(step, Barrier) and step.trigger is not None:
                    self.materialised.add(shown[step.trigger])
                self.materialised.update(step.writes)
                passed.update(step.writes)
                continue
            op = step.op
            if op in loaded_operands and step.writes[0] not in self.epilogue_ends:
                source = loaded[step.reads[loaded_operands[op]]]
                if op not in rules.storing.expensive:
                    loaded[step.writes[0]] = source
                elif source not in products:
                    loaded[step.writes[0]] = source
                    applied.update(step.writes)
            if op in views:
                shown[step.writes[0]] = shown[step.reads[0]]
                loaded[step.writes[0]] = loaded[step.reads[0]]
                if step.reads[0] in products:
                    products.update(step.writes)
                if step.reads[0] in figures:
                    figures.update(step.writes)
                if step.reads[0] in applied:
                    applied.update(step.writes)
            else:
                self._materialise_results(step, read_later, read_by_clones)
            if op in rows.column_reductions:
                self.rows.added_up.update(shown[i] for i in step.reads)
            if row_kernels is not None:
                self.materialised.update(row_kernels.written(step, self.materialised))
            if op in rules.gathers:
                self._count_picks(step, shown[step.reads[0]])
            if op in dots or op in library:
                products.update(step.writes)
            if needed_operands[op]:
                needed = loaded if op in dots else shown
                if has_joined and (joined := self.joined.of(step)) is not None:
                    self.materialised.update(needed[i] for i in joined.others)
                    self.materialised.update(loaded[i] for i in joined.parts)
                elif op not in rules.storing.expensive or passed.isdisjoint(loaded[i] for i in step.reads):
                    self.materialised.update(needed[step.reads[position]] for position in needed_operands[op])
        self.rows.cut = set() if row_kernels is None else row_kernels.cut
        return applied

    def _epilogues(self, steps: Sequence[ScheduleStep], outputs: Sequence[int]) -> tuple[set[int], set[int]]:
        """Rules 8 and 9: what products write behind elementwise ops, and what is before that in their kernels.

        Fills `library_results`, too.
        """
        # One function: it runs for every step of every replay, and a call costs more than a branch.
        rules, size_bytes = self.rules, self.size_bytes
        products, epilogues = rules.products.with_epilogues, rules.products.epilogues
        views, given = rules.products.views, rules.products.given
        library, library_epilogues = rules.products.library, rules.products.library_epilogues
        several_batch_axes, repeating = rules.products.several_batch_axes, rules.products.repeating
        plain, dots, loaded_operands = rules.products.plain, rules.products.dots, rules.products.loaded_operands
        readers, needed = [0] * len(size_bytes), list[ScheduleStep]()
        for instance in outputs:
            readers[instance] += 1
        for step in reversed(steps):
            is_read = any(map(readers.__getitem__, step.writes))
            # Compilers eliminate steps whose results nobody reads. Bodies of loops stay complete: no compiled body was
            # looked at.
            if is_read or not isinstance(step, Run) or step.loop is not None or rules.graph.ops[step.op].effects:
                needed.append(step)
                for instance in step.reads:
                    readers[instance] += 1
        passed = {*rules.graph.inputs, *rules.graph.constants}
        """Operands that an epilogue may read besides: arguments, and results of barriers."""
        written: dict[int, tuple[int, int | None]] = {}
        """Results of products, each with the number of its product in the schedule, and the loop that it runs in."""
        before, ends, of_library = set[int](), set[int](), self.library_results
        applied, plain_results = set[int](), set[int]()
        """Operands that elementwise ops computed; results of products with which nothing is fused so far."""
        of_products = set[int]()
        """Results of products, and of elementwise ops behind these."""
        batched, small = set[int](), set[int]()
        """Results of products with several batch axes; of those of few tiles."""
        fused: dict[int, _FusedProduct] = {}
        """By its result what is fused so far with a product that a library may compute."""
        shown_bytes: dict[int, int] = {}
        """For views of operands that an epilogue may read the bytes of what they show."""
        for step in reversed(needed):
            if isinstance(step, Run) and step.op in loaded_operands:
                source = step.reads[loaded_operands[step.op]]
                if step.op not in rules.storing.expensive or source not in of_products:
                    applied.update(step.writes)
                if source in of_products:
                    of_products.update(step.writes)
            elif isinstance(step, Run) and step.op in views:
                applied.update(step.writes if step.reads[0] in applied else ())
                of_products.update(step.writes if step.reads[0] in of_products else ())
            elif isinstance(step, Run) and (step.op in dots or step.op in library):
                of_products.update(step.writes)
            if not isinstance(step, Run) or step.op in given:
                passed.update(step.writes)
            elif step.op in products:
                written[step.writes[0]] = len(written), step.loop
                if step.op in several_batch_axes:
                    batched.add(step.writes[0])
                if not products[step.op]:
                    small.add(step.writes[0])
                if step.op in library:
                    fused[step.writes[0]] = _FusedProduct(library[step.op], True, step.writes, frozenset(step.reads))
                elif step.op in plain and applied.isdisjoint(step.reads) and self.joined.of(step) is None:
                    plain_results.add(step.writes[0])
            elif step.op in views and (step.reads[0] in passed or size_bytes[step.reads[0]] <= _SCALAR_BYTES):
                passed.update(step.writes)
                shown_bytes[step.writes[0]] = shown_bytes.get(step.reads[0], size_bytes[step.reads[0]])
            elif step.op in epilogues:
                lone = [i for i in step.reads if readers[i] == 1 and i in written and written[i][1] == step.loop]
                result = lone[0] if lone else None
                if len(lone) > 1 and result in ends:  # XLA fuses one product after the other, the last one with both
                    result = max(lone, key=written.__getitem__)
                if (result in batched and step.op in repeating) or (
                    result in small and step.op not in library_epilogues
                ):
                    continue
                if result is not None and all(i == result or i in passed or i in written for i in step.reads):
                    written[step.writes[0]] = written.pop(result)
                    if result in batched:
                        batched.update(step.writes)
                    if result in small:
                        small.update(step.writes)
                    if step.op in library_epilogues:
                        plain_results.update(step.writes if result in plain_results else ())
                    plain_results.discard(result)
                    before.add(result)
                    ends.discard(result)
                    ends.add(step.writes[0])
                    if result in fused:
                        product = fused.pop(result)
                        moved = {*step.reads, *step.writes} - product.reads
                        moved_bytes = sum([shown_bytes.get(i, size_bytes[i]) for i in moved])
                        is_librarys = step.op in library_epilogues and result == product.results[-1]
                        fused[step.writes[0]] = _FusedProduct(
                            product.spare_bytes - moved_bytes + 2 * size_bytes[result],
                            product.only_adds and rules.graph.ops[step.op].primitive in _ADDITIONS,
                            (*product.results, *step.writes) if is_librarys else product.results,
                            product.reads.union(step.reads),
                        )
        of_library.update(plain_results, *(product.results for product in fused.values() if product.is_librarys))
        return ends, before

    def _count_picks(self, gather: Run, table: int) -> None:
        """Rule 3: a gather that picks each element of its table k times reads it as k kernels do."""
        times = sum(self.size_bytes[i] for i in gather.writes) // max(1, self.size_bytes[table])
        if times > 1:
            self.picks[table] = self.picks.get(table, 0) + times

    def _materialise_results(self, step: Run, read_later: set[int], read_by_clones: set[int]) -> None:
        """Rules 1, 4 to 6, for the results of an op; a row reduction is in memory or folded."""
        if step.op in self.rules.rows.row_reductions:
            where = self.rows.figures if self._folds(step, read_later, read_by_clones) else self.materialised
            where.add(step.writes[0])
        elif step.op in self.rules.products.with_epilogues and step.writes[0] in self.inside_products:
            return
        elif step.loop is not None and step.op in self.rules.storing.parts_bytes:
            return  # `_place_parts` decides
        elif step.op in self.rules.writes_memory or self._stores_exponentials(step, read_later):
            self.materialised.update(step.writes)
        elif self._computes_figures(step):
            self.rows.figures.update(step.writes)

    def _computes_figures(self, step: Run) -> bool:
        """True if an op computes a figure for each row from other figures of rows."""
        size_bytes, figures = self.size_bytes, self.rows.figures.intersection(step.reads)
        return bool(figures) and max(size_bytes[i] for i in step.writes) <= max(size_bytes[i] for i in figures)

    def _folds(self, step: Run, read_later: set[int], read_by_clones: set[int]) -> bool:
        """Rule 5: True if a row reduction is fused into the kernels that read it."""
        rows = self.rules.rows
        if step.is_clone and step.writes[0] not in read_by_clones:
            folded = rows.folded_in_backward
        else:
            folded = rows.folded if step.is_clone or step.writes[0] in read_later else rows.folded_if_unread
        reads_stored = step.op in rows.separate_reductions and step.reads[0] in self.materialised
        return step.op in folded and not reads_stored

    def _stores_exponentials(self, step: Run, read_later: set[int]) -> bool:
        """Rule 5: True if a step writes exponentials of a softmax that a backward pass finds in memory."""
        is_stored = step.op in self.rules.rows.stored_exponentials
        return is_stored and (step.is_clone or not read_later.isdisjoint(step.writes))

    def _materialise_across_loops(self, step: ScheduleStep, shown: Sequence[int]) -> None:
        """Rule 7: an instance of an inner loop is stacked as it is read, one of an outer level as its views show it."""
        assert self._loop is not None
        self._loop.update(dict.fromkeys(step.writes, step.loop))
        around = self.rules.graph.path(step.loop)
        for instance in step.reads:
            loop = self._loop.get(instance)
            if loop != step.loop:
                self.materialised.add(shown[instance] if loop is None or loop in around else instance)

    def _read_after_forward(self, steps: Sequence[ScheduleStep]) -> set[int]:
        """Instances of the forward pass that later kernels read, or compute from what they read."""
        after_forward, writes_memory = self.rules.after_forward, self.rules.writes_memory
        found: set[int] = set()
        for step in reversed(steps):
            if isinstance(step, Run) and (
                step.op in after_forward
                or step.is_clone
                or (step.op not in writes_memory and not found.isdisjoint(step.writes))
            ):
                found.update(step.reads)
        return found

    def _read_by_clones(self, steps: Sequence[ScheduleStep]) -> set[int]:
        """Instances that clones whose results are in memory read, directly or through other clones."""
        rules = self.rules
        if not rules.rows.row_reductions:
            return set()
        needed, found = set(self.materialised), set[int]()
        for step in reversed(steps):
            if not isinstance(step, Run):
                needed.update(step.reads)
                continue
            needed.update(step.reads[position] for position in rules.needed_operands[step.op])
            if step.op in rules.same_size_views and step.writes[0] in needed:
                needed.add(step.reads[0])
            elif step.is_clone and step.op not in rules.after_forward:
                writes_memory = step.op in rules.writes_memory and step.op not in rules.rows.row_reductions
                if writes_memory or not needed.isdisjoint(step.writes) or not found.isdisjoint(step.writes):
                    found.update(step.reads)
        return found

    def _expensive_siblings(self, steps: Sequence[ScheduleStep]) -> Mapping[int, frozenset[int]]:
        """Rule 3: an expensive op whose readers do not depend on each other is in one kernel with them.

        The first readers of a recomputed activation are the product that gives its weights' gradient and its own
        derivative, which need nothing of each other. So are, in the last layer, a loss and its derivative, except where
        the op alone would be a kernel: XLA leaves the tanh of a product alone.

        A reduction of what a reader writes (the gradient of a bias) takes that reader into its kernel before kernels
        become siblings, and XLA then stores what both read: `tanh` of a gelu behind a bias is in memory.
        """
        expensive, graph = self.rules.storing.expensive, self.rules.graph
        run = (step for step in steps if isinstance(step, Run) and step.op in expensive)
        merged = [step for step in run if step.is_clone or self.materialised.isdisjoint(step.reads)]
        kernels = self.readers.kernels
        several = {i: kernels[i] for step in merged for i in step.writes if 1 < len(kernels[i]) < _MANY}
        if not several:
            return {}
        # Only outside of loops: no compiled body was looked at.
        reduced = reduction_operands(graph, (step for step in steps if step.loop is None))
        several = {i: reading for i, reading in several.items() if reduced.isdisjoint(reading)}
        independent = _independent(steps, set(several.values()))
        siblings = {instance: reading for instance, reading in several.items() if reading in independent}
        for step in merged:
            if not siblings.keys().isdisjoint(step.writes):
                self.materialised.difference_update(step.reads[p] for p in self.rules.needed_operands[step.op])
        return siblings

    def _reading_kernels(self, steps: Sequence[ScheduleStep], applied: set[int]) -> Readers:
        """The readers of each instance if only what must be is in memory, up to `_MANY`.

        Adds to what must be in memory rows of which several kernels read parts.

        Instances that are in memory have none here: rule 3 is for others. Those in `applied` have no matrix products
        here that compute them.
        """
        # One function: it runs for every step of every replay, and a call costs more than a branch.
        nothing: frozenset[int] = frozenset()
        materialised, gathers, dots = self.materialised, self.rules.gathers, self.rules.products.dots
        slices, parts_bytes, cut = self.rules.partial_reads - gathers, self.rules.storing.parts_bytes, self.rows.cut
        size_bytes, kernels = self.size_bytes, [nothing] * len(self.size_bytes)
        last_read, read_by_one, never_stored = dict[int, ScheduleStep](), set[int](), self.rules.never_materialised
        shares = [0.0] * len(size_bytes) if slices else None
        for step in reversed(steps):
            writing, share = nothing, 0.0
            op = step.op if isinstance(step, Run) else None
            for instance in step.writes:
                if instance in cut and len(kernels[instance]) > 1:
                    materialised.add(instance)
                is_written = instance in materialised or instance in self.picks or op in parts_bytes
                own = frozenset((instance,)) if is_written else kernels[instance]
                writing = writing | own if writing else own
                if shares is not None:
                    part = size_bytes[instance] / max(1, size_bytes[step.reads[0]]) if op in slices else 1.0
                    share += part if is_written else part * shares[instance]
            applies = bool(applied) and op in dots
            can_be_stored = op is not None and op not in never_stored and len(step.writes) == 1
            for instance in step.reads[1:] if op in gathers else step.reads:  # of a table next to nothing is read
                if applies and instance in applied:
                    continue
                if instance not in materialised:
                    if last_read.setdefault(instance, step) is not step:
                        read_by_one.discard(instance)
                    elif can_be_stored and size_bytes[step.writes[0]] <= size_bytes[instance]:
                        read_by_one.add(instance)
                    if len(known := kernels[instance]) < _MANY:
                        kernels[instance] = known | writing if known else writing
                if shares is not None:
                    shares[instance] += share
        return Readers(kernels, shares, read_by_one, SharedSources(self.rules.graph, steps, materialised))


def reduction_operands(graph: Graph, steps: Iterable[ScheduleStep]) -> frozenset[int]:
    """The instances that the reductions of some steps read."""
    runs = (step for step in steps if isinstance(step, Run) and graph.ops[step.op].kind is Kind.REDUCTION)
    return frozenset(instance for step in runs for instance in step.reads)


def _read_by_parts(rules: FusionRules, steps: Sequence[ScheduleStep]) -> JoinedSteps:
    """Rule 10: the steps, with the parts of concatenations as operands of the products that take these in.

    A product in another loop, or on the other side of a barrier, reads the concatenation.
    """
    products, graph = rules.products, rules.graph
    if not products.joined:
        return JoinedSteps(steps, {})
    concatenations, found = products.concatenations, list(steps)
    joined: dict[int, JoinedOperands] = {}
    concatenated: dict[int, Run] = {}
    """By its result each concatenation."""
    repeated: dict[int, int] = {}
    """By its result the operand of each broadcast."""
    for at, step in enumerate(steps):
        if not isinstance(step, Run):
            continue
        if step.op in concatenations:
            concatenated[step.writes[0]] = step
        elif step.reads and graph.ops[step.op].primitive == "broadcast_in_dim":
            repeated[step.writes[0]] = step.reads[0]
        elif step.op in products.joined:
            candidates = ((i, concatenated[i]) for i in step.reads if i in concatenated)
            taken = {i: r for i, r in candidates if r.op in products.joined[step.op] and r.loop == step.loop}
            if taken:
                others = tuple(i for i in step.reads if i not in taken)
                read = tuple(repeated.get(i, i) for run in taken.values() for i in run.reads)
                written = [v for run in taken.values() for v in graph.ops[run.op].writes]
                copy_bytes = graph.size_bytes(written) if step.op in products.library else 0
                joined[step.writes[0]] = JoinedOperands(others, read, copy_bytes)
                found[at] = replace(step, reads=(*others, *read))
    return JoinedSteps(found, joined)


def _independent(steps: Sequence[ScheduleStep], groups: Collection[frozenset[int]]) -> Collection[frozenset[int]]:
    """The groups of instances of which no member depends on another."""
    bit = {instance: 1 << index for index, instance in enumerate(sorted(frozenset().union(*groups)))}
    depends_on = _dependencies(steps, bit) if bit else {}
    together = {group: sum(bit[member] for member in group) for group in groups}
    return {group for group in groups if not any(depends_on[member] & together[group] for member in group)}


def _dependencies(steps: Sequence[ScheduleStep], bit: dict[int, int]) -> dict[int, int]:
    """For each of the instances in `bit` the bits of those that it is computed from."""
    above: dict[int, int] = {}
    found: dict[int, int] = {}
    for step in steps:
        if len(found) == len(bit):
            break
        if not above and bit.keys().isdisjoint(step.writes):
            continue
        reads = step.reads
        if isinstance(step, Barrier) and step.trigger is not None:
            reads = (*reads, step.trigger)
        elif isinstance(step, Run) and step.after is not None:
            reads = (*reads, step.after)
        mask = 0
        for instance in reads:
            mask |= above.get(instance, 0)
        for instance in step.writes:
            if instance in bit:
                found[instance] = mask
                above[instance] = mask | bit[instance]
            elif mask:
                above[instance] = mask
    return found
