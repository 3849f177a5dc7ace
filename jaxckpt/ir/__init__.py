"""A training step, and what is decided about it, as frozen data: plain Python, no jax, no algorithm.

Read in this order: `graph` (ops and values), `regions` (bodies of loops, conds and `shard_map` that are inlined in it),
`kind` (the family of a primitive, as far as fusion and cost go), `plan` (decisions for one graph, and loops to split or
tile), `layers` (equal layers folded into one name), `scope` (name stacks).
Algorithms on these data are in `jaxckpt.schedule`.
"""

from jaxckpt.ir.graph import Graph, Op, Phase, Value
from jaxckpt.ir.kind import Kind, Trait, kind_of, trait_of
from jaxckpt.ir.plan import (
    Decision,
    GraphPlan,
    LoopSplit,
    LoopTiling,
    Offload,
    Partition,
    Prediction,
    Recompute,
    Save,
)
from jaxckpt.ir.regions import Loop

__all__ = [
    "Decision",
    "Graph",
    "GraphPlan",
    "Kind",
    "Loop",
    "LoopSplit",
    "LoopTiling",
    "Offload",
    "Op",
    "Partition",
    "Phase",
    "Prediction",
    "Recompute",
    "Save",
    "Trait",
    "Value",
    "kind_of",
    "trait_of",
]
