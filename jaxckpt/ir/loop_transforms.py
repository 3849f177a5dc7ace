"""Loop transformations that a plan asks for: splitting and tiling.

Loop splitting (index-set splitting): consecutive iterations become loops of their own, with their own decisions. Each
part is a loop in the graph of the split step, with its own values, so a decision for a residual holds for the
iterations of one part. Loops that share values of iterations (a forward loop and its backward) are split at the same
iterations. Parameters are not split.

Loop tiling (strip mining, nested checkpointing of a scan): an outer loop over groups, an inner one over iterations. The
forward loop saves only the carry at the start of each group. The backward loop runs over the groups too, and in each
group recomputes the forward iterations before its own, so that residuals are saved for one group and not for all
iterations. A loop of T iterations whose every value is recomputed saves T carries; tiled into O groups of I iterations
it saves O + I, for one more forward pass of its body (Chen et al. 2016, section 3, of equal segments).

Read after `regions`.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSplit:
    """The parts of a loop, and of all loops that share values of iterations with it.

    Attributes:
      loop: Its position in `Graph.loops` of the step as it was traced.
      lengths: Trip count of each part, in the order of the slices, in whichever direction the loop runs.
    """

    loop: int
    lengths: tuple[int, ...]


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
