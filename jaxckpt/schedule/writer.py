"""The steps of a schedule as they are written, and the instance of each value that a step written now reads.

Instances are numbered in the order in which steps write them, as in static single assignment form.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from jaxckpt.ir.graph import Graph
from jaxckpt.schedule.steps import Barrier, Schedule, ScheduleStep, Why


class StepWriter:
    """A schedule under construction.

    Args:
      graph: The step.

    Attributes:
      steps: The steps so far, in order.
      origin: For each instance its value.
      current: For each value its latest instance.
      loop: The loop in whose body the next steps stand, or None.
    """

    def __init__(self, graph: Graph):
        self.steps: list[ScheduleStep] = []
        self.origin = [value.id for value in graph.values]
        self.current = list(self.origin)
        self.loop: int | None = None
        self._outputs = graph.outputs

    def new_instance(self, value: int) -> int:
        """Number of a further instance of a value."""
        self.origin.append(value)
        return len(self.origin) - 1

    def barrier(self, reads: Iterable[int], *, why: Why, trigger: int | None = None) -> tuple[int, ...]:
        """Passes instances through a barrier; returns the new ones."""
        reads = tuple(reads)
        writes = tuple(self.new_instance(self.origin[read]) for read in reads)
        self.steps.append(Barrier(reads=reads, writes=writes, trigger=trigger, why=why, loop=self.loop))
        return writes

    @contextmanager
    def within(self, loop: int | None) -> Iterator[None]:
        """Writes steps into the body of another loop for a while."""
        before, self.loop = self.loop, loop
        yield
        self.loop = before

    def schedule(self) -> Schedule:
        """All steps, with the instances that the step returns."""
        return Schedule(
            steps=tuple(self.steps),
            origin=tuple(self.origin),
            outputs=tuple(self.current[v] for v in self._outputs),
        )
