"""A loop whose body is inlined ("open") in the graph: trip count, direction, and the loop around it.

The ops of a body stand in `Graph.ops` once, marked with their loop (`Op.loop`), and their values are those of one
iteration. Four primitives of our own join a body to the ops around it:

- `loop_carry` writes the carry that an iteration gets from the one before (in the first iteration: its operand);
- `loop_slice` writes the iteration's slice of a scanned array;
- `loop_end` stands behind the loop and writes the final carry;
- `loop_stack` stands behind the loop and writes the stacked values of all iterations.

A value of one loop may be read in another of the same length: iteration i reads the value of iteration i (counted as
the slices of an array, in whichever direction a loop runs). Such a value is a residual of the body, and is saved once
for every iteration between the two loops.

Branches of conds are loops of one iteration; see `branch`.

Read after `graph`.
"""

from dataclasses import dataclass

from jaxckpt.ir.branch import COND_END, Branch

CARRY, SLICE, END, STACK = "loop_carry", "loop_slice", "loop_end", "loop_stack"
"""Primitives of the ops that join a body to the ops around it."""
BODY_INPUTS = frozenset({CARRY, SLICE})
"""Those that stand in the body and read values from outside of it."""
BODY_OUTPUTS = frozenset({END, STACK, COND_END})
"""Those that stand behind the body, or the branches, and read its values."""
ALL_ITERATIONS = "turns"
"""The effect of those of them that cannot be recomputed without all iterations of the loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """An open loop.

    Attributes:
      id: Its position in `Graph.loops`.
      length: Trip count.
      reverse: True if the first iteration reads the last slice.
      parent: The loop in whose body it stands, or None.
      rolled: True if it is a loop for the compiler too; one of a single iteration, or fully unrolled, is not.
      unroll: Number of its iterations in one iteration of the compiler's loop.
      is_clone: True if it recomputes a loop that ran before (see `jaxckpt.rewrite.tile_loops`).
      branch: The branch of a cond that stands here, if it is no loop; the trip count is then 1.
    """

    id: int
    length: int
    reverse: bool
    parent: int | None = None
    rolled: bool = True
    unroll: int = 1
    is_clone: bool = False
    branch: Branch | None = None
