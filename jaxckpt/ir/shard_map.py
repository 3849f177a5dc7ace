"""The body of a `shard_map` that is inlined ("open") in the graph: its values are those of one device.

Its ops stand among the others, each once, and every device runs them on its own shards. Two primitives of our own lead
in and out, and move nothing by themselves:

- `to_shards` writes a device's shard of an array, as the `in_specs` say;
- `from_shards` writes the array of all devices' shards, as the `out_specs` say.

A value of one body can be read in another body over the same mesh: device i reads the value of device i. So ops of a
body are not tied to the user's `shard_map`; clones of them are a `shard_map` of their own.

Read after `graph`.
"""

TO_SHARDS, FROM_SHARDS = "to_shards", "from_shards"
"""Primitives of the ops that lead into a body and out of it."""
