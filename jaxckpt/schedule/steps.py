"""What a schedule is made of: an op run, values passed through a barrier, a value moved to where it waits.

Steps read and write *instances*. Instance `i < len(graph.values)` is value `i` itself; later instances are values
passed through a barrier or computed again.

Read after `decision`.
"""

from dataclasses import dataclass
from typing import Literal

from jaxckpt.ir import Offload, Op, Partition

Why = Literal["pin", "recompute", "store", "load"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One op, run over instances.

    Attributes:
      op: The op.
      reads: Instances.
      writes: Instances.
      is_clone: Whether it is a copy.
      loop: The open loop in whose body it then runs.
      after: An instance that has to be there before it runs, which reads nothing.
    """

    op: int
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    is_clone: bool = False
    loop: int | None = None
    after: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Barrier:
    """Instances passed on under new ids, all of them after `trigger` (an instance) is there.

    A pin is a barrier over one instance without a trigger. `why` says what it is for, `loop` in whose body it stands.
    """

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    trigger: int | None = None
    why: Why = "pin"
    loop: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A value put into the form in which it waits, or brought back from it.

    Attributes:
      reads: The instance that is there, alone.
      writes: The instance that comes of it, alone.
      decision: Where and how it waits.
      back: Whether it comes back.
      loop: The open loop in whose body; a shard of what a turn makes waits in a stack, and is gathered in each turn.
      ahead: Whether a turn moves what the one before it made, or what the next one reads.
    """

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    decision: Offload | Partition
    restores: bool = False
    loop: int | None = None
    is_pipelined: bool = False


Step = Run | Barrier | Move


def run_of(op: Op) -> Run:
    """The op itself, with no clone and no barrier, as a step of a schedule."""
    return Run(op=op.id, reads=op.reads, writes=op.writes, loop=op.loop)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Steps in order.

    Attributes:
      steps: Runs, barriers and moves; each reads only what earlier ones wrote, inputs and constants.
      origin: For each instance the value that it is.
      outputs: The instances that the step returns, in the order of `Graph.outputs`.
    """

    steps: tuple[Step, ...]
    origin: tuple[int, ...]
    outputs: tuple[int, ...]
