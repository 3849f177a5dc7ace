"""A loop nested in two: an outer one over groups of consecutive turns, an inner one over the turns of a group.

Of the forward loop only what a group begins with waits for the backward. The backward goes through the groups too, and
in each it runs the forward turns again before its own: what a turn leaves for the backward waits for one group, not
for all turns. A loop of T turns whose every value is computed again keeps T carries; nested in O groups of I turns it
keeps O + I, for one more forward pass of its body (Chen et al. 2016, section 3, of equal segments).

Read after `loop` and `loop_splits`.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopTiling:
    """How a loop, and all that share values of turns with it, are nested.

    Attributes:
      loop: Its position in `Graph.loops` of the step as it was traced; where the plan splits loops, of the split step.
      outer: How many groups.
      inner: How many turns in each.
    """

    loop: int
    outer: int
    inner: int
