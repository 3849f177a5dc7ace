"""A step as users write it becomes an `ir.Graph`, with the way back from every value to its variable.

Read in this order: `arguments` (what a step may be called with), `program` (one level of equations), `loops`, `shards`,
`inline`, `merge`, `prune`, `scope`, `phase`, `hoist`, `whole`, `close`, `size`, `split` (over a mesh), `exchange` (what
devices tell each other), `work`, `detail`, `source`, `graph`, `step`, which calls them, `rebuilt`, and `stretch` (loops
in several parts) and `nest` (loops in two).
"""

from jaxckpt.trace.close import closed_jaxpr
from jaxckpt.trace.nest import Nested, as_decided, nestable, nested
from jaxckpt.trace.program import Equation, Program
from jaxckpt.trace.step import Traced, trace_stage, trace_step
from jaxckpt.trace.stretch import Stretched, in_stretches, together

__all__ = [
    "Equation",
    "Nested",
    "Program",
    "Stretched",
    "Traced",
    "as_decided",
    "closed_jaxpr",
    "in_stretches",
    "nestable",
    "nested",
    "together",
    "trace_stage",
    "trace_step",
]
