"""The step whose values a plan decides on: regions of rows in pieces, then loops split, then loops tiled.

Each change gives a traced step with a graph of its own, and later changes and all decisions name values and loops of
that graph. Few plans change a step: the others do not load the modules that do it.
"""

from jaxckpt.ir import GraphPlan
from jaxckpt.trace import Traced


def transformed_step(traced: Traced, plan: GraphPlan) -> Traced:
    """The traced step with the rows in pieces and the loops that a plan asks for; the step itself where it asks none.

    Raises:
      PlanMismatchError: The step has no such region, or no loop that can be split or tiled like that.
    """
    if plan.row_chunks:
        from jaxckpt.rewrite.chunk_rows import with_row_chunks

        traced = with_row_chunks(traced, plan.row_chunks)
    if plan.loop_splits or plan.loop_tilings:
        from jaxckpt.rewrite.split_loops import with_split_loops
        from jaxckpt.rewrite.tile_loops import with_tiled_loops

        traced = with_tiled_loops(with_split_loops(traced, plan.loop_splits).traced, plan.loop_tilings).traced
    return traced
