"""A step as users write it becomes an `ir.Graph`, with the way back from every value to its variable.

Read in this order: `arguments` (of a step), `phase` (forward, backward or update; clones moved to the
forward pass), `sink` (code sinking in the backward), `sharding` (shardings over a mesh, bytes on one device),
`collectives` (bytes exchanged), `flops`, `op_facts`, `graph`, and `step`, which calls them.
"""

from jaxckpt.trace.step import Traced as Traced, trace_call as trace_call, trace_step as trace_step
