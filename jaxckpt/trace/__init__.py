"""A step as users write it becomes an `ir.Graph`, with the way back from every value to its variable.

Read in this order: `arguments` (what a step may be called with), `program` (one level of equations), `loops`, `shards`,
`inline`, `merge`, `prune`, `scope`, `phase`, `hoist`, `whole`, `close`, `size`, `split` (over a mesh), `exchange`
(what devices tell each other), `work`, `detail`, `source`, `graph`, `step`, which calls them, and `stretch` (loops in
several parts).
"""

from jaxckpt.trace.close import closed_jaxpr
from jaxckpt.trace.program import Equation, Program
from jaxckpt.trace.step import Traced, trace_stage, trace_step
from jaxckpt.trace.stretch import Stretched, in_stretches, together

__all__ = [
    "Equation",
    "Program",
    "Stretched",
    "Traced",
    "closed_jaxpr",
    "in_stretches",
    "together",
    "trace_stage",
    "trace_step",
]
