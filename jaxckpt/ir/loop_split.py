"""Loop splitting (index-set splitting): consecutive iterations become loops of their own, with their own decisions.

Each part is a loop in the graph of the split step, with its own values, so a decision for a residual holds for the
iterations of one part. Loops that share values of iterations (a forward loop and its backward) are split at the same
iterations. Parameters are not split.

Read after `loop`.
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
