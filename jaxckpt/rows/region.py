"""A region of a step that treats rows alike, as data."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import jax.extend.core as jex

from jaxckpt.rows.axis import RowAxis
from jaxckpt.rows.rules import RowFlow


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowRegion:
    """Equations of a traced step that can run a piece of rows at a time.

    A value and a dimension name the region in a step: its largest value, and the dimension of it that has the rows.

    Attributes:
      value: Id of the largest value.
      dimension: The dimension of it that holds the rows.
      rows: Number of rows.
      positions: Positions of the equations in the program, which are ids of ops, in order.
      flows: For each of them the rows of its operands and results.
      axes: For each value that the region computes row by row where its rows are.
      sums: Results of the region that are sums over all rows.
      stacked: Results of the region with rows.
      large_bytes: Bytes of the values with rows that are larger than half of the largest and that the region computes.
    """

    value: int
    dimension: int
    rows: int
    positions: tuple[int, ...]
    flows: Mapping[int, RowFlow] = field(repr=False)
    axes: Mapping[jex.Var, RowAxis] = field(repr=False)
    sums: tuple[jex.Var, ...] = field(repr=False)
    stacked: tuple[jex.Var, ...] = field(repr=False)
    large_bytes: int = 0

    @property
    def pieces(self) -> tuple[int, ...]:
        """The numbers of pieces that there can be: divisors of the number of rows, ascending, without 1."""
        return tuple(n for n in range(2, self.rows + 1) if self.rows % n == 0)

    def most_pieces(self, most: int) -> int:
        """The largest number of pieces that is no more than `most`; 1 where there is none."""
        return max((n for n in self.pieces if n <= most), default=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedRows:
    """A dimension of a value that a region cannot have as rows.

    Attributes:
      value: Id of the value.
      dimension: Its dimension.
      reason: A sentence.
    """

    value: int
    dimension: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRegions:
    """The regions of a step, those of the largest values first, and what was refused."""

    regions: tuple[RowRegion, ...]
    refused: tuple[RefusedRows, ...]

    def with_pieces(self, pieces: int) -> RowRegion | None:
        """The first region whose rows can be divided into so many pieces; None where there is none."""
        return next((region for region in self.regions if region.rows % pieces == 0), None)
