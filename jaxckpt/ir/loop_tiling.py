"""Loop tiling (strip mining, nested checkpointing of a scan): an outer loop over groups, an inner one over iterations.

The forward loop saves only the carry at the start of each group. The backward loop runs over the groups too, and in
each group recomputes the forward iterations before its own, so that residuals are saved for one group and not for all
iterations. A loop of T iterations whose every value is recomputed saves T carries; tiled into O groups of I iterations
it saves O + I, for one more forward pass of its body (Chen et al. 2016, section 3, of equal segments).

Read after `loop` and `loop_split`.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopTiling:
    """The groups of a loop, and of all loops that share values of iterations with it.

    Attributes:
      loop: Its position in `Graph.loops` of the step as it was traced; where the plan splits loops, of the split step.
      outer: Number of groups.
      inner: Iterations in each.
    """

    loop: int
    outer: int
    inner: int
