"""Liveness in loops: live ranges of buffers that other iterations or other loops read, and residual stacks.

The steps of a body are replayed once.

1. A buffer from outside of a loop that is read in its body lives until the loop is over.
2. A buffer of one loop that a later loop reads is in a stack, from the beginning of the one to the end of the other; so
   are results that a loop stacks for the step. A kernel that needs a slice of a stack in memory gets a copy of it.
3. A stack that the later loop reads in another layout is transposed before that loop begins, one stack after the other.
4. Branches of a cond are replayed one after the other, each for its share. A buffer from outside lives until the last
   of them is over. A result of a branch lives until its end, and as the cond's result from there on. A residual of a
   branch is in a slot, which branches share of which only one runs (`ResidualSlots`).

Slots of branches' residuals: residuals of two branches of one cond are never alive together, so those of one size may
share a place, and do in the program that is built: the first residual of a type that a branch returns is returned where
the first one of another branch is. Each branch fills the slots that it has nothing for with zeros.

Read after `jaxckpt.ir.regions`; `buffer_liveness` asks.
"""

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod

from jaxckpt.ir import Graph
from jaxckpt.ir.regions import CARRY, COND_END, END, STACK
from jaxckpt.schedule import Run, ScheduleStep


@dataclass(slots=True)
class Span:
    """Bytes that are alive from one step to another."""

    birth: int
    death: int
    size_bytes: int


@dataclass(slots=True)
class ResidualSlot:
    """A place for values of which at most one is alive, with the loops and branches around each of them."""

    span: Span
    homes: list[tuple[int, ...]] = field(default_factory=list)


class ResidualSlots:
    """The slots of a step."""

    def __init__(self, graph: Graph):
        self._graph = graph
        self._slots: dict[tuple[int, int], list[ResidualSlot]] = {}

    def place(self, new: Span, home: tuple[int, ...], common: int) -> Span:
        """Puts a value into a slot that exists, whose span then covers that of the value, or into a new one.

        `home` has the loops and branches around the value, outermost first; the first `common` are around its reader,
        too. A value of no branch has a span of its own.
        """
        cond = next((branch.cond for loop in home[common:] if (branch := self._graph.loops[loop].branch)), None)
        if cond is None:
            return new
        slots = self._slots.setdefault((cond, new.size_bytes), [])
        slot = next((slot for slot in slots if all(self._exclude(home, other) for other in slot.homes)), None)
        if slot is None:
            slots.append(slot := ResidualSlot(new))
        slot.homes.append(home)
        slot.span.birth, slot.span.death = min(slot.span.birth, new.birth), max(slot.span.death, new.death)
        return slot.span

    def _exclude(self, one: tuple[int, ...], other: tuple[int, ...]) -> bool:
        """True if at most one of two bodies runs."""
        level = first_difference(one, other)
        return level is not None and other[level] in self._graph.sibling_branches[one[level]]


def first_difference(one: tuple[int, ...], other: tuple[int, ...]) -> int | None:
    """The first level at which two bodies are in different loops; None where one body is in the other."""
    return next((level for level, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)


class LoopLiveness:
    """The loops of one replay.

    Attributes:
      residuals: For each buffer that another loop reads the span of its stack or slot.
      first_read: For each such buffer the first step of the loop that reads it first.
      slices: For each such span, by its identity, and each loop that reads it the copy of a slice.
      in_slots: Buffers that another cond of the same iteration reads: they are in a slot and in no stack.
      result_stacks: For each buffer that the step stacks the instance of the stack.
      held: Memory for values that iterations hold for one another.
      read_inside: Buffers that a step of the same iteration reads, or that the next iteration gets as its carry.
      first: For each loop its first step.
      last: For each loop its last step.
    """

    def __init__(self, graph: Graph, steps: Sequence[ScheduleStep]):
        self.graph = graph
        self.steps = steps
        self.residuals: dict[int, Span] = {}
        self.first_read: dict[int, int] = {}
        self.slices: dict[tuple[int, int | None], Span] = {}
        self.in_slots: set[int] = set()
        self.result_stacks: dict[int, int] = {}
        self.held: list[Span] = []
        self._slots = ResidualSlots(graph)
        self._loop: dict[int, int | None] = {}
        self.first: dict[int, int] = {}
        self.last: dict[int, int] = {}
        self._over: dict[int, int] = {}
        """For each loop the last step of it, and for a branch that of all branches of its cond."""
        self.read_inside: set[int] = set()
        for at, step in enumerate(steps if graph.loops else ()):
            is_end = isinstance(step, Run) and graph.ops[step.op].primitive == END
            self.read_inside.update(i for i in step.reads if is_end or self._loop.get(i) == step.loop)
            self._loop.update(dict.fromkeys(step.writes, step.loop))
            for loop in graph.path(step.loop):
                self.first.setdefault(loop, at)
                self.last[loop] = at
                self._over.update(dict.fromkeys(graph.sibling_branches[loop], at))

    def hold(self, begin: int, end: int, size_bytes: int) -> Span:
        """Takes memory for a value that one iteration has of another one."""
        self.held.append(Span(birth=begin, death=end, size_bytes=size_bytes))
        return self.held[-1]

    def stacking_loop(self, source: int) -> int | None:
        """The loop whose iterations copy a buffer into its stack: for one of a branch, a loop around the cond."""
        loop = self._loop.get(source)
        branches = [around for around in self.graph.path(loop) if self.graph.loops[around].branch is not None]
        return self.graph.loops[branches[0]].parent if branches else loop

    def is_boundary(self, step: ScheduleStep) -> bool:
        """True if a step only passes on a buffer, from iteration to iteration or out of a loop or a cond."""
        return isinstance(step, Run) and self.graph.ops[step.op].primitive in (CARRY, END, COND_END)

    def birth(self, at: int, source: int) -> int:
        """The step from which a buffer is alive that is written at a step: a stack begins with its (first) loop."""
        if not self.graph.loops:
            return at
        step = self.steps[at]
        begins = []
        if isinstance(step, Run) and self.graph.ops[step.op].primitive == STACK:
            around = self.graph.path(step.loop)
            for read in step.reads:
                inside = self.graph.path(self._loop.get(read))
                if len(inside) > len(around):
                    self.result_stacks[read] = source
                    begins.append(self.first[inside[len(around)]])
        return min(begins, default=at)

    def stack_depth(self, source: int, step: ScheduleStep) -> int:
        """How many iterations of a buffer are in the stack that a step makes of it."""
        within = self.graph.path(self._loop.get(source))[len(self.graph.path(step.loop)) :]
        return prod(self.graph.loops[loop].length for loop in within)

    def death(self, at: int, source: int, size_bytes: int) -> int:
        """The last step at which a buffer is alive that is read at a step; -1 where a stack or a result is read."""
        around, home, common = self._paths(at, source)
        if common is None:
            if len(home) > len(around):
                return self._death_in_body(at, home[len(around)])
            return at if len(home) == len(around) else self._over[around[len(home)]]
        key = self._slice_key(at, source, size_bytes)
        if key in self.slices:
            self.slices[key].death = max(at, self.slices[key].death)
        return next((self.last[loop] for loop in home[common:] if self.graph.loops[loop].branch), -1)

    def _paths(self, at: int, source: int) -> tuple[tuple[int, ...], tuple[int, ...], int | None]:
        """The loops around what a step reads, those around a buffer, and the first level at which they differ.

        The initial carry of a loop is outside of it.
        """
        step = self.steps[at]
        around, home = self.graph.path(step.loop), self.graph.path(self._loop.get(source))
        if isinstance(step, Run) and self.graph.ops[step.op].primitive == CARRY:
            around = around[:-1]
        return around, home, first_difference(around, home)

    def _death_in_body(self, at: int, loop: int) -> int:
        """The last step at which a body's buffer is alive that is read outside of the body."""
        if self.graph.loops[loop].branch is not None:
            return self.last[loop]
        return at if self.is_boundary(self.steps[at]) else -1

    def _slice_key(self, at: int, source: int, size_bytes: int) -> tuple[int, int | None]:
        """The stack or slot in which a later loop, or a branch of a later cond, finds a buffer, by its identity.

        And the loop that takes a slice for the reader: the one around the reader, or around the reader's cond.
        """
        around, home, common = self._paths(at, source)
        assert common is not None, "the step and the buffer are in two loops or branches"
        if source not in self.residuals:
            depth = prod(self.graph.loops[loop].length for loop in home[common:])
            outermost = home[common]
            is_branch = self.graph.loops[outermost].branch is not None
            birth = self._over[outermost] + 1 if is_branch else self.first[outermost]
            new = Span(birth=birth, death=at, size_bytes=depth * size_bytes)
            self.residuals[source] = self._slots.place(new, home, common)
            self.first_read[source] = self.first[around[common]]
            if all(self.graph.loops[loop].branch is not None for loop in home[common:]):
                self.in_slots.add(source)
        residual = self.residuals[source]
        residual.death = max(residual.death, self._over[around[common]])
        cond = self._cond(around, common)
        return id(residual), around[: len(home)][-1] if cond is None else self.graph.loops[cond].parent

    def _cond(self, around: tuple[int, ...], common: int) -> int | None:
        """The outermost branch around a reader and not around the buffer."""
        return next((loop for loop in around[common:] if self.graph.loops[loop].branch is not None), None)

    def copy_slice(self, at: int, source: int, size_bytes: int, *, in_memory: bool) -> float:
        """Copies the slice of a stack: how often the copy runs; 0 where a copy exists, or none is needed.

        What a branch reads is in memory before the cond, also where its kernel could read it from the stack.
        """
        around, home, common = self._paths(at, source)
        if common is None or len(around) < len(home):
            return 0
        cond = self._cond(around, common)
        if (cond is None and not in_memory) or cond == around[common]:
            return 0
        key = self._slice_key(at, source, size_bytes)
        if key in self.slices:
            return 0
        if cond is None:
            self.slices[key] = Span(birth=at, death=at, size_bytes=size_bytes)
            return self.graph.runs_per_step(self.steps[at].loop)
        birth = min(self.first.get(branch, len(self.steps)) for branch in self.graph.sibling_branches[cond])
        self.slices[key] = Span(birth=birth, death=self._over[cond], size_bytes=size_bytes)
        return self.graph.runs_per_step(self.graph.loops[cond].parent)

    @property
    def branch_slots(self) -> dict[int, Span]:
        """Slots of branches, under numbers that no instance has."""
        spans = {id(span): span for source, span in self.residuals.items() if source in self.in_slots}
        return {~number: span for number, span in enumerate(spans.values())}

    def spans(self, external: Container[int] = ()) -> Iterator[Span]:
        """Spans of what no instance is: values held, slots that are not external, stacks but results, slices."""
        yield from self.held
        yield from (span for slot, span in self.branch_slots.items() if slot not in external)
        stacked = (source for source in self.residuals if source not in self.result_stacks)
        stacked = (source for source in stacked if source not in self.in_slots)
        yield from {id(self.residuals[source]): self.residuals[source] for source in stacked}.values()
        yield from self.slices.values()
