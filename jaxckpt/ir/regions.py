"""Regions of a graph: bodies of loops, branches of conds and bodies of `shard_map` that are inlined ("open") in it.

Loops. The ops of a body stand in `Graph.ops` once, marked with their loop (`Op.loop`), and their values are those of
one iteration. Four primitives of our own join a body to the ops around it:

- `loop_carry` writes the carry that an iteration gets from the one before (in the first iteration: its operand);
- `loop_slice` writes the iteration's slice of a scanned array;
- `loop_end` stands behind the loop and writes the final carry;
- `loop_stack` stands behind the loop and writes the stacked values of all iterations.

A value of one loop may be read in another of the same length: iteration i reads the value of iteration i (counted as
the slices of an array, in whichever direction a loop runs). Such a value is a residual of the body, and is saved once
for every iteration between the two loops.

Branches of a `cond` or `switch`. Each is a `Loop` of one iteration that has a `Branch`; the branches of one cond are
consecutive. `cond_end` stands behind them, reads the index and a value of each branch, and writes the selected one. A
value of a branch may be read in the same branch of another cond over the same index: both run, or neither does. Such a
value is a residual of the branch. The first cond returns it in a slot, which values of one type of different branches
share: the residuals of a cond take as many bytes as those of its largest branch.

Bodies of `shard_map`. Their values are those of one device, and every device runs them on its own shards. `to_shards`
writes a device's shard of an array, as the `in_specs` say; `from_shards` writes the array of all devices' shards, as
the `out_specs` say; neither moves anything by itself. A value of one body can be read in another body over the same
mesh: device i reads the value of device i. So clones of its ops are a `shard_map` of their own.

Read after `graph`.
"""

from dataclasses import dataclass

TO_SHARDS, FROM_SHARDS = "to_shards", "from_shards"
"""Primitives of the ops that lead into a body and out of it."""

COND_END = "cond_end"
"""The primitive of the op that joins branches to what is around."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """A branch and its cond.

    Attributes:
      cond: A number for all branches of one cond.
      position: The index with which it runs.
      of: Number of branches.
    """

    cond: int
    position: int
    of: int

    @property
    def share(self) -> float:
        """Runs of the branch for one run of the cond: all branches are taken to run equally often."""
        return 1 / self.of


CARRY, SLICE, END, STACK = "loop_carry", "loop_slice", "loop_end", "loop_stack"
"""Primitives of the ops that join a body to the ops around it."""
BODY_INPUTS = frozenset({CARRY, SLICE})
"""Those that stand in the body and read values from outside of it."""
BODY_OUTPUTS = frozenset({END, STACK, COND_END})
"""Those that stand behind the body, or the branches, and read its values."""
LOOP_BOUNDARIES = BODY_INPUTS | BODY_OUTPUTS
ALL_ITERATIONS = "all_iterations"
"""The effect of those of them that cannot be recomputed without all iterations of the loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """An open loop.

    Attributes:
      id: Its position in `Graph.loops`.
      length: Trip count; 1 for a while, whose trip count is not known.
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
