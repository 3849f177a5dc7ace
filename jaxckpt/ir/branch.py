"""A branch of a `cond` or `switch` that is inlined ("open") in the graph: its cond and its position.

The ops of a branch stand in `Graph.ops` once, marked with a `Loop` of one iteration that has a `Branch`; the branches
of one cond are consecutive. One primitive of our own joins them to the ops around them:

- `cond_end` stands behind the branches, reads the index and a value of each branch, and writes the selected one.

A value of a branch may be read in the same branch of another cond over the same index: both run, or neither does. Such
a value is a residual of the branch. The first cond returns it in a slot, which values of one type of different branches
share: the residuals of a cond take as many bytes as those of its largest branch.

Read before `loop`.
"""

from dataclasses import dataclass

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
