"""A traced step and a plan become a step that carries the plan out.

Read in this order: `moves` and `stacks` (the equations of what waits elsewhere), `equations` (steps of a schedule as
equations), `rewritten` (the checked result), `mismatch` (what to say when plan and step do not belong together),
`placed` (where a step runs), `agree` (whether other processes of the run do the same), `apply` (the same as a function
of the step's signature).
"""

from jaxckpt.rewrite.agree import told
from jaxckpt.rewrite.apply import apply, apply_decided
from jaxckpt.rewrite.mismatch import PlannedArgument
from jaxckpt.rewrite.rewritten import Rewritten, rewrite

__all__ = ["PlannedArgument", "Rewritten", "apply", "apply_decided", "rewrite", "told"]
