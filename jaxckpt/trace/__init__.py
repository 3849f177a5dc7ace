"""A step as users write it becomes an `ir.Graph`, with the way back from every value to its variable.

Read in this order: `arguments` (what a step may be called with), `program` (one level of equations), `loops`,
`inline`, `merge`, `prune`, `scope`, `phase`, `hoist`, `close`, `size`, `split` (over a mesh), `exchange` (what devices
tell each other), `work`, `detail`, `source`, `graph`, and `step`, which calls them.
"""

from jaxckpt.trace.close import closed_jaxpr
from jaxckpt.trace.program import Equation, Program
from jaxckpt.trace.step import Traced, trace_stage, trace_step

__all__ = ["Equation", "Program", "Traced", "closed_jaxpr", "trace_stage", "trace_step"]
