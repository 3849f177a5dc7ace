"""Outlining: one level of equations becomes a jaxpr again, with its scans, conds and shard_maps.

The inverse of inlining (`jaxckpt.program`). Read in this order: `interfaces` (what loops and branches read and give),
`stack_indexing` (iterations that index arrays themselves), `shard_map`, `outline` (the order of the passes, and of all
equations).
"""

from jaxckpt.outline.outline import closed_jaxpr as closed_jaxpr
