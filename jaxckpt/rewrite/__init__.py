"""A traced step and a plan become a step that carries the plan out.

Read in this order: `loop_transforms`, `split_loops` and `tile_loops` (the loops that a plan asks for), `row_piece` and
`chunk_rows` (a region of rows in pieces), `transformed_step` (the step with both), `moves` (equations of transfers),
`flat_residual_stacks` (residuals of loops), `equations` (steps of a schedule as equations), `rewrite` (the type-checked
result), `check_plan` (a plan is for one step), `known_bad` (plans that a compiler would miscompile), `agreement` (all
processes of a run carry out the same plan), `apply` (all of it as a function of the step's own signature).
"""

from jaxckpt.rewrite.agreement import broadcast as broadcast
from jaxckpt.rewrite.apply import PlannedFunction as PlannedFunction, apply as apply, apply_decided as apply_decided
from jaxckpt.rewrite.check_plan import Argument as Argument
from jaxckpt.rewrite.rewrite import Rewritten as Rewritten, rewrite as rewrite
