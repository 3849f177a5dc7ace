"""The body of a `shard_map` that stands open in the graph: its values are those of one device.

Its ops stand among the others, each once, and every device runs them on its own part of the arrays. Two ops of ours
lead in and out, and move nothing by themselves:

- `to_shards` shows a device its part of an array, as the `in_specs` say;
- `from_shards` makes an array of all devices' parts, as the `out_specs` say.

What one body makes another one over the same mesh can read: device i reads what device i made. So nothing of a body is
tied to the place where the user's `shard_map` stands; what is computed again of it is a `shard_map` of its own.

Read after `graph`.
"""

TO_SHARDS, FROM_SHARDS = "to_shards", "from_shards"
"""Primitives of the ops that lead into a body and out of it."""
