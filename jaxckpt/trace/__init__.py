"""A step as users write it becomes an `ir.Graph`, with the way back from every value to its variable.

Read in this order: `arguments` (what a step may be called with), `phase` (forward, backward or update), `to_forward`
(clones moved back to the forward pass), `size`, `sharding` (over a mesh), `collectives`, `flops`, `detail`, `traits`,
`source`, `graph`, and `step`, which calls them.
"""

from jaxckpt.trace.step import Traced, trace_stage, trace_step

__all__ = [
    "Traced",
    "trace_stage",
    "trace_step",
]
