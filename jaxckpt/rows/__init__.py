"""Regions of a step that treat rows alike: tokens of a loss head, pixels, examples.

Such a region can be computed a piece of rows at a time, forward and backward together, so that its large values (the
logits) exist for one piece only; `rewrite.chunk_rows` does that. Read in this order: `axis` (where the rows of a value
are), `row_numbers` (indices that are row numbers), `rules` (how the rows of operands and results of one equation belong
together), `region` (the data), `find` (the search).
"""

from jaxckpt.rows.find import find_regions as find_regions
from jaxckpt.rows.region import RefusedRows as RefusedRows, RowRegion as RowRegion, RowRegions as RowRegions
