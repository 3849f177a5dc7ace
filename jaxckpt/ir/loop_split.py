"""A loop split into stretches of consecutive turns, so that their layers can be decided on differently.

Each stretch is a loop of its own in the graph of the split step, with its own values: what one decision says of a
residual holds for the turns of its stretch. Loops that share values of turns (a forward loop and its backward) are
split at the same turns. Parameters stay where they are, whole.

Read after `loop`.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSplit:
    """How a loop, and all that share values of turns with it, are split.

    Attributes:
      loop: Its position in `Graph.loops` of the step as it was traced.
      lengths: The turns of each stretch, as the slices of an array are counted, whichever way the loop runs.
    """

    loop: int
    lengths: tuple[int, ...]
