"""The rows of an array: a factor of one of its dimensions.

A dimension of length `outer * rows * inner` holds `rows` rows: its index is `(o * rows + row) * inner + i`. With
`outer = inner = 1` the rows are all of the dimension. Tokens (batch, sequence, width) flattened to (batch * sequence,
width) have batch elements as rows with `inner = sequence`, and positions in the sequence as rows with `outer = batch`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class RowAxis:
    """The dimension that holds the rows of an array, and the other factors of its length.

    Attributes:
      dimension: Position in the shape.
      outer: Length of the factor around the rows.
      inner: Length of the factor within a row.
    """

    dimension: int
    outer: int = 1
    inner: int = 1

    def at(self, dimension: int) -> "RowAxis":
        """The same factors in another dimension."""
        return replace(self, dimension=dimension)

    def resized(self, shape: Sequence[int], rows: int) -> tuple[int, ...]:
        """The shape with another number of rows."""
        own = self.outer * rows * self.inner
        return (*shape[: self.dimension], own, *shape[self.dimension + 1 :])

    def separated(self, shape: Sequence[int], rows: int) -> tuple[int, ...]:
        """The shape with `outer` as a dimension of its own, before that of the rows."""
        return (*shape[: self.dimension], self.outer, rows * self.inner, *shape[self.dimension + 1 :])

    def reshaped(self, old: Sequence[int], new: Sequence[int], rows: int) -> "RowAxis | None":
        """The row axis after a reshape; None where no dimension holds all rows.

        In row-major order neighbouring rows are `stride` elements apart, before and after.

        Example:
          >>> RowAxis(dimension=1).reshaped((8, 1024, 768), (8192, 768), rows=1024)
          RowAxis(dimension=0, outer=8, inner=1)
          >>> RowAxis(dimension=0).reshaped((8192, 768), (8, 1024, 768), rows=8192) is None
          True
        """
        stride = self.inner * math.prod(old[self.dimension + 1 :])
        for dimension, length in enumerate(new):
            below = math.prod(new[dimension + 1 :])
            if not stride or not below or stride % below:  # arrays without elements have no rows to find
                continue
            inner = stride // below
            if length >= rows * inner and length % (rows * inner) == 0:
                return RowAxis(dimension=dimension, outer=length // (rows * inner), inner=inner)
        return None
