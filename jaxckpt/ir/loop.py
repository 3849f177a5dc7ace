"""A loop whose body stands open in the graph: how often it turns, which way, and inside which other loop.

The ops of a body stand in `Graph.ops` once, marked with their loop (`Op.loop`), and their values are those of one turn.
Four ops of ours join them to what is around:

- `loop_carry` makes what a turn gets from the one before (in the first turn: its operand);
- `loop_slice` shows the turn's slice of an array that the loop goes through;
- `loop_end` stands behind the loop and gives what the last turn handed on;
- `loop_stack` stands behind the loop and gives a value of every turn, stacked.

A value made in one loop may be read in another of the same length: turn i reads what turn i made (turns are counted as
the slices of an array, whichever way a loop runs). That is what a residual of a body is. Between the two loops it waits
once for every turn.

Branches of conds are loops of one turn; see `branch`.

Read after `graph`.
"""

from dataclasses import dataclass

from jaxckpt.ir.branch import COND_END, Branch

CARRY, SLICE, END, STACK = "loop_carry", "loop_slice", "loop_end", "loop_stack"
"""Primitives of the ops that join a body to what is around."""
BODY_INPUTS = frozenset({CARRY, SLICE})
"""Those that stand in the body and read what is around."""
BODY_OUTPUTS = frozenset({END, STACK, COND_END})
"""Those that stand behind the body, or the branches, and read what is in it."""
ALL_ITERATIONS = "turns"
"""The effect of those of them that cannot run again without all turns of the loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """An open loop.

    Attributes:
      id: Its position in `Graph.loops`.
      length: Turns.
      reverse: Whether it begins with the last slice.
      parent: The loop whose body it stands in, or None.
      rolled: Whether it is a loop for the compiler too; one of a single turn, or unrolled as a whole, is not.
      unroll: How many of its turns stand one after the other in a turn of the compiler's loop.
      is_clone: Whether it is a copy of a loop that ran before, and computes the same again (see `nest`).
      branch: Which branch of a cond it is, if it is no loop; it then has one turn.
    """

    id: int
    length: int
    reverse: bool
    parent: int | None = None
    rolled: bool = True
    unroll: int = 1
    is_clone: bool = False
    branch: Branch | None = None
