"""What open loops add to a replay: how long a buffer is wanted that other turns read, and what waits for all turns.

A body's steps are replayed once. What stands outside of a loop and is read in its body lives until the loop is over.
What a later loop reads of an earlier one waits in a stack, from the beginning of the one to the end of the other; so do
results that a loop stacks for the step. A kernel that needs a slice of a stack in memory gets a copy of it. A stack
that the later loop wants with its axes in another order is copied as a whole before it begins, one after the other.

Branches of conds are replayed one after the other, each for its share. What stands outside lives until the last of
them is over. What a branch gives lives until its end, and as the cond's result from there on; what waits for another
cond does so in a slot, which values of branches share of which only one runs.

Read after `jaxckpt.ir.loop`; `replay` asks.
"""

from collections.abc import Container, Iterator, Sequence
from math import prod

from jaxckpt.cost.branch_residuals import ResidualSlots, Span
from jaxckpt.ir import Graph
from jaxckpt.ir.branch import COND_END
from jaxckpt.ir.loop import CARRY, END, STACK
from jaxckpt.schedule import Run, ScheduleStep


class LoopLiveness:
    """The loops of one replay.

    Args:
      graph: The step.
      steps: In the order in which they are replayed.

    Attributes:
      waiting: For each buffer that another loop reads its stack.
      wanted: For each such buffer the first step of the loop that reads it first.
      copies: For each stack that another loop reads, by its identity, and that loop the copy of a slice.
      in_slots: Buffers that wait for another cond in the same turn, and so in no stack.
      shared: The slots of branches.
      stacks: For each buffer that the step stacks the instance of the stack.
      slots: What turns of loops hold for each other.
    """

    def __init__(self, graph: Graph, steps: Sequence[ScheduleStep]):
        self.graph = graph
        self.steps = steps
        self.waiting: dict[int, Span] = {}
        self.wanted: dict[int, int] = {}
        self.copies: dict[tuple[int, int | None], Span] = {}
        self.in_slots: set[int] = set()
        self.shared = ResidualSlots(graph)
        self.stacks: dict[int, int] = {}
        self.slots: list[Span] = []
        self._loop: dict[int, int | None] = {}
        self._first: dict[int, int] = {}
        self._last: dict[int, int] = {}
        self._over: dict[int, int] = {}
        """For each loop the last step of it, and for a branch that of all branches of its cond."""
        self._read_inside: set[int] = set()
        for at, step in enumerate(steps if graph.loops else ()):
            self._read_inside.update(i for i in step.reads if self._loop.get(i) == step.loop)
            self._loop.update(dict.fromkeys(step.writes, step.loop))
            for loop in graph.path(step.loop):
                self._first.setdefault(loop, at)
                self._last[loop] = at
                self._over.update(dict.fromkeys(graph.sibling_branches[loop], at))

    def begin(self, loop: int) -> int:
        """The first step of a loop."""
        return self._first[loop]

    def end(self, loop: int) -> int:
        """The last step of a loop."""
        return self._last[loop]

    def slot(self, begin: int, end: int, size_bytes: int) -> Span:
        """Memory for a value that a turn has of another one."""
        self.slots.append(Span(birth=begin, death=end, size_bytes=size_bytes))
        return self.slots[-1]

    def number(self, step: ScheduleStep) -> float:
        """How often a step runs, on the average."""
        return self.graph.runs_per_step(step.loop)

    def is_read_inside(self, source: int) -> bool:
        """Whether a step of the same turn reads what is stacked."""
        return source in self._read_inside

    def stacked_by(self, source: int) -> int | None:
        """The loop whose turns copy a buffer into its stack: where a branch makes it, one around the cond."""
        loop = self._loop.get(source)
        branches = [around for around in self.graph.path(loop) if self.graph.loops[around].branch is not None]
        return self.graph.loops[branches[0]].parent if branches else loop

    def is_frame(self, step: ScheduleStep) -> bool:
        """Whether a step only hands on what is in memory, from turn to turn or out of a loop."""
        return isinstance(step, Run) and self.graph.ops[step.op].primitive in (CARRY, END, COND_END)

    def born(self, at: int, source: int) -> int:
        """The step from which a buffer has to be there that is made at a step: a stack begins with its (first) loop."""
        if not self.graph.loops:
            return at
        step = self.steps[at]
        begins = []
        if isinstance(step, Run) and self.graph.ops[step.op].primitive == STACK:
            around = self.graph.path(step.loop)
            for read in step.reads:
                inside = self.graph.path(self._loop.get(read))
                if len(inside) > len(around):
                    self.stacks[read] = source
                    begins.append(self._first[inside[len(around)]])
        return min(begins, default=at)

    def stacked(self, source: int, step: ScheduleStep) -> int:
        """How many turns of a buffer stand in a stack that a step makes of it."""
        within = self.graph.path(self._loop.get(source))[len(self.graph.path(step.loop)) :]
        return prod(self.graph.loops[loop].length for loop in within)

    def is_again(self, step: ScheduleStep) -> bool:
        """Whether a step computes again what was computed before."""
        return (isinstance(step, Run) and step.is_clone) or self.graph.is_in_clone(step.loop)

    def until(self, at: int, source: int, size_bytes: int) -> int:
        """The last step for which a buffer must be there that is read at a step; -1 where another one is read."""
        around, home = self._path(at), self.graph.path(self._loop.get(source))
        common = _parting(around, home)
        if common is None:
            if len(home) > len(around):
                return self._given(at, home[len(around)])
            return at if len(home) == len(around) else self._over[around[len(home)]]
        self._waits(at, source, size_bytes)
        key = id(self.waiting[source]), self._copied_in(around, home)
        if key in self.copies:
            self.copies[key].death = max(at, self.copies[key].death)
        return next((self._last[loop] for loop in home[common:] if self.graph.loops[loop].branch), -1)

    def _given(self, at: int, loop: int) -> int:
        """The last step for which a body's buffer must be there that is read behind it."""
        if self.graph.loops[loop].branch is not None:
            return self._last[loop]
        return at if self.is_frame(self.steps[at]) else -1

    def _waits(self, at: int, source: int, size_bytes: int) -> Span:
        """Where a buffer waits for a later loop, or for a branch of a later cond."""
        around, home = self._path(at), self.graph.path(self._loop.get(source))
        common = _parting(around, home)
        assert common is not None, "it stands in another body"
        if source not in self.waiting:
            copies = prod(self.graph.loops[loop].length for loop in home[common:])
            leaves = home[common]
            birth = self._first[leaves] if self.graph.loops[leaves].branch is None else self._over[leaves] + 1
            new = Span(birth=birth, death=at, size_bytes=copies * size_bytes)
            self.waiting[source] = self.shared.place(new, home, common)
            self.wanted[source] = self._first[around[common]]
            if all(self.graph.loops[loop].branch is not None for loop in home[common:]):
                self.in_slots.add(source)
        waiting = self.waiting[source]
        waiting.death = max(waiting.death, self._over[around[common]])
        return waiting

    def _copied_in(self, around: tuple[int, ...], home: tuple[int, ...]) -> int | None:
        """The loop that takes a slice for a reader: the one around it, or around the cond that it stands in."""
        common = _parting(around, home)
        cond = next((loop for loop in around[common:] if self.graph.loops[loop].branch is not None), None)
        return around[: len(home)][-1] if cond is None else self.graph.loops[cond].parent

    def copies_of(self, at: int, source: int, size_bytes: int, *, in_memory: bool) -> float:
        """Puts the slice of a stack into memory: how often that runs; 0 where it is there, or need not be.

        What a branch takes is in memory before the cond, also where its kernel could read it from the stack.
        """
        around, home = self._path(at), self.graph.path(self._loop.get(source))
        common = _parting(around, home)
        if common is None or len(around) < len(home):
            return 0
        cond = next((loop for loop in around[common:] if self.graph.loops[loop].branch is not None), None)
        if (cond is None and not in_memory) or cond == around[common]:
            return 0
        self._waits(at, source, size_bytes)
        key = id(self.waiting[source]), self._copied_in(around, home)
        if key in self.copies:
            return 0
        birth, death = (
            (at, at) if cond is None else (min(map(self._begin, self.graph.sibling_branches[cond])), self._over[cond])
        )
        self.copies[key] = Span(birth=birth, death=death, size_bytes=size_bytes)
        return self.number(self.steps[at]) if cond is None else self.graph.runs_per_step(self.graph.loops[cond].parent)

    def _begin(self, loop: int) -> int:
        """The first step of a loop; one behind all of a branch without any."""
        return self._first.get(loop, len(self.steps))

    @property
    def slots_of_branches(self) -> dict[int, Span]:
        """What waits in slots, under numbers that no instance has."""
        spans = {id(self.waiting[source]): self.waiting[source] for source in self.waiting if source in self.in_slots}
        return {~number: span for number, span in enumerate(spans.values())}

    def spans(self, elsewhere: Container[int] = ()) -> Iterator[Span]:
        """All stacks that are no results, slots but those that stand elsewhere, copies of slices, what turns hold."""
        yield from self.slots
        yield from (span for slot, span in self.slots_of_branches.items() if slot not in elsewhere)
        waiting = (source for source in self.waiting if source not in self.stacks and source not in self.in_slots)
        yield from {id(self.waiting[source]): self.waiting[source] for source in waiting}.values()
        yield from self.copies.values()

    def _path(self, at: int) -> tuple[int, ...]:
        """The loops around what a step reads: what a loop begins with stands outside of it."""
        step = self.steps[at]
        path = self.graph.path(step.loop)
        return path[:-1] if isinstance(step, Run) and self.graph.ops[step.op].primitive == CARRY else path


def _parting(around: tuple[int, ...], home: tuple[int, ...]) -> int | None:
    """The level at which one of two bodies is in another loop than the other; None where the one is in the other."""
    return next((k for k, (one, other) in enumerate(zip(around, home, strict=False)) if one != other), None)
