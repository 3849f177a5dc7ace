"""Outlining: one level of equations becomes a jaxpr again, with its scans, conds and shard_maps.

Read in this order: `stack_indexing` (how an iteration reads and writes its slice of a stacked array), `cond` and
`shard_map` (their equations), `outline` (scans, and the order of all equations).
"""

from jaxckpt.outline.outline import closed_jaxpr

__all__ = [
    "closed_jaxpr",
]
