"""What open loops add to a replay: how long a buffer is wanted that other turns read, and what waits for all turns.

A body's steps are replayed once. What stands outside of a loop and is read in its body lives until the loop is over.
What a later loop reads of an earlier one waits in a stack, from the beginning of the one to the end of the other; so do
results that a loop stacks for the step. A kernel that needs a slice of a stack in memory gets a copy of it. A stack
that the later loop wants with its axes in another order is copied as a whole before it begins, one after the other.

Read after `jaxckpt.ir.loop`; `replay` asks.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from jaxckpt.ir import Graph, Run, Step
from jaxckpt.ir.loop import CARRY, END, STACK


@dataclass(slots=True)
class Span:
    """Bytes that are there from one step to another."""

    birth: int
    death: int
    size_bytes: int


class Turns:
    """The loops of one replay.

    Args:
      graph: The step.
      steps: In the order in which they are replayed.

    Attributes:
      waiting: For each buffer that another loop reads its stack.
      wanted: For each such buffer the first step of the loop that reads it first.
      copies: For each buffer that another loop reads, and that loop, the copy of a slice of its stack.
      stacks: For each buffer that the step stacks the instance of the stack.
      slots: What turns of loops hold for each other.
    """

    def __init__(self, graph: Graph, steps: Sequence[Step]):
        self.graph = graph
        self.steps = steps
        self.waiting: dict[int, Span] = {}
        self.wanted: dict[int, int] = {}
        self.copies: dict[tuple[int, int], Span] = {}
        self.stacks: dict[int, int] = {}
        self.slots: list[Span] = []
        self._loop: dict[int, int | None] = {}
        self._first: dict[int, int] = {}
        self._last: dict[int, int] = {}
        self._read_inside: set[int] = set()
        for at, step in enumerate(steps if graph.loops else ()):
            self._read_inside.update(i for i in step.reads if self._loop.get(i) == step.loop)
            self._loop.update(dict.fromkeys(step.writes, step.loop))
            for loop in graph.path(step.loop):
                self._first.setdefault(loop, at)
                self._last[loop] = at

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

    def number(self, step: Step) -> int:
        """How often a step runs."""
        return self.graph.turns(step.loop)

    def is_read_inside(self, source: int) -> bool:
        """Whether a step of the same turn reads what is stacked."""
        return source in self._read_inside

    def is_frame(self, step: Step) -> bool:
        """Whether a step only hands on what is in memory, from turn to turn or out of a loop."""
        return isinstance(step, Run) and self.graph.ops[step.op].primitive in (CARRY, END)

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

    def stacked(self, source: int, step: Step) -> int:
        """How many turns of a buffer stand in a stack that a step makes of it."""
        within = self.graph.path(self._loop.get(source))[len(self.graph.path(step.loop)) :]
        return prod(self.graph.loops[loop].length for loop in within)

    def is_again(self, step: Step) -> bool:
        """Whether a step computes again what was computed before."""
        again = isinstance(step, Run) and step.again
        return again or any(self.graph.loops[loop].again for loop in self.graph.path(step.loop))

    def until(self, at: int, source: int, size_bytes: int) -> int:
        """The last step for which a buffer must be there that is read at a step; -1 where another one is read."""
        if not self.graph.loops:
            return at
        around, home = self._path(at), self.graph.path(self._loop.get(source))
        common = next((k for k, (one, other) in enumerate(zip(around, home, strict=False)) if one != other), None)
        if common is None:
            if len(home) > len(around):
                return at if self.is_frame(self.steps[at]) else -1
            return at if len(home) == len(around) else self._last[around[len(home)]]
        copies = prod(self.graph.loops[loop].length for loop in home[common:])
        new = Span(birth=self._first[home[common]], death=at, size_bytes=copies * size_bytes)
        waiting = self.waiting.setdefault(source, new)
        waiting.death = max(waiting.death, self._last[around[common]])
        self.wanted.setdefault(source, self._first[around[common]])
        if (source, around[-1]) in self.copies:
            self.copies[source, around[-1]].death = at
        return -1

    def copy(self, at: int, source: int, size_bytes: int) -> bool:
        """Puts the slice of a stack into memory; whether it was not there."""
        if not self.graph.loops:
            return False
        around, home = self._path(at), self.graph.path(self._loop.get(source))
        if len(home) != len(around) or home == around or (source, around[-1]) in self.copies:
            return False
        self.copies[source, around[-1]] = Span(birth=at, death=at, size_bytes=size_bytes)
        return True

    def spans(self) -> Iterator[Span]:
        """All stacks that are no results, copies of slices, and what turns hold for each other."""
        yield from self.slots
        yield from (span for source, span in self.waiting.items() if source not in self.stacks)
        yield from self.copies.values()

    def _path(self, at: int) -> tuple[int, ...]:
        """The loops around what a step reads: what a loop begins with stands outside of it."""
        step = self.steps[at]
        path = self.graph.path(step.loop)
        return path[:-1] if isinstance(step, Run) and self.graph.ops[step.op].primitive == CARRY else path
