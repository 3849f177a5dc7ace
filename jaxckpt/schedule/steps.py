"""Steps of a schedule: an op that runs, values passed through a barrier, a value stored or loaded; and their writer.

Steps read and write *instances*. Instance `i < len(graph.values)` is value `i` itself; later instances are values
passed through a barrier, moved or recomputed.

Read after `jaxckpt.ir`.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from jaxckpt.ir import Graph, Moved

Why = Literal["pin", "recompute", "store", "load"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One op, run over instances in the body of an open loop, if any; `is_clone` if the op runs a second time.

    `after` is an instance that must exist before an op that reads nothing runs (see `initialisers`).
    """

    op: int
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    is_clone: bool = False
    loop: int | None = None
    after: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Barrier:
    """Instances passed on under new ids, none of them before the instance `trigger` exists.

    A pin is a barrier over one instance without a trigger; a barrier of the backward has none where nothing but
    literals has been computed after the forward pass. `why` says what the barrier is for, `loop` in whose body it
    stands.
    """

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    trigger: int | None = None
    why: Why = "pin"
    loop: int | None = None

    @property
    def is_in_backward(self) -> bool:
        """True if ops after the forward pass read behind it."""
        return self.why in ("load", "recompute")


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One instance stored on the host or loaded (`Offload`), or cut into shards or gathered (`Partition`).

    Attributes:
      restores: True if the value is loaded or gathered.
      loop: The open loop in whose body the move stands: each iteration moves its own value.
      is_pipelined: True if an iteration stores the value of the one before it, or loads that of the next one.
    """

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    decision: Moved
    restores: bool = False
    loop: int | None = None
    is_pipelined: bool = False


ScheduleStep = Run | Barrier | Move


def unchanged_runs(graph: Graph) -> tuple[Run, ...]:
    """Each op itself as a step of a schedule; ask for it with `Graph.once`, as every schedule has most of them."""
    return tuple(Run(op=op.id, reads=op.reads, writes=op.writes, loop=op.loop) for op in graph.ops)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Steps in order, the value that each instance is, and the instances that the step returns.

    Each step reads only what earlier ones wrote, inputs and constants.
    """

    steps: tuple[ScheduleStep, ...]
    origin: tuple[int, ...]
    outputs: tuple[int, ...]


class StepWriter:
    """A schedule under construction, in static single assignment form.

    Attributes:
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

    def latest(self, value: int | None) -> int | None:
        """The latest instance of a value, if there is a value."""
        return None if value is None else self.current[value]

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
            steps=tuple(self.steps), origin=tuple(self.origin), outputs=tuple(self.current[v] for v in self._outputs)
        )
