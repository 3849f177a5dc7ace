"""A branch of a `cond` or `switch` that stands open in the graph: which of how many, and of which cond.

The ops of a branch stand in `Graph.ops` once, marked with a `Loop` of one turn that has a `Branch`; the branches of one
cond are neighbours. One op of ours joins them to what is around:

- `cond_end` stands behind the branches and gives what the one that ran has made; it reads the index of that one, and
  a value of each branch.

A value made in a branch may be read in the same branch of another cond over the same index: both run, or neither does.
That is what a residual of a branch is. Between the two conds it waits in a slot that the conds hand over. A slot is
shared by values of one type of different branches, so what waits is as much as the greediest branch keeps.

Read before `loop`.
"""

from dataclasses import dataclass

COND_END = "cond_end"
"""The primitive of the op that joins branches to what is around."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """Which branch it is.

    Attributes:
      cond: A number for all branches of one cond.
      position: The index with which it runs.
      of: How many branches there are.
    """

    cond: int
    position: int
    of: int

    @property
    def share(self) -> float:
        """How often it runs where the cond runs once: nobody knows before the step runs, so all as often."""
        return 1 / self.of
