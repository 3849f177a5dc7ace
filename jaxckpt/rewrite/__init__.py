"""A traced step and a plan become a step that carries the plan out.

Read in this order: `loop_transforms`, `split_loops` and `tile_loops` (the loops that a plan asks for), `moves` and
`host_stack` (equations of transfers), `equations` (steps of a schedule as equations), `rewrite` (the type-checked
result), `check_plan` (a plan is for one step), `known_bad` (plans that a compiler would miscompile), `agreement` (all
processes of a run carry out the same plan), `apply` (all of it as a function of the step's own signature).
"""

from jaxckpt.rewrite.agreement import broadcast
from jaxckpt.rewrite.apply import apply, apply_decided
from jaxckpt.rewrite.check_plan import PlannedArgument
from jaxckpt.rewrite.rewrite import Rewritten, rewrite
from jaxckpt.rewrite.split_loops import SplitStep, loops_split_together, with_split_loops
from jaxckpt.rewrite.tile_loops import TiledStep, tileable_loops, with_planned_loops, with_tiled_loops

__all__ = [
    "PlannedArgument",
    "Rewritten",
    "SplitStep",
    "TiledStep",
    "apply",
    "apply_decided",
    "broadcast",
    "loops_split_together",
    "rewrite",
    "tileable_loops",
    "with_planned_loops",
    "with_split_loops",
    "with_tiled_loops",
]
