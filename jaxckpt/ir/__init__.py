"""A training step, and what is decided about it, as frozen data: plain Python, no jax, no algorithm.

Read in this order: `graph` (ops and values), `regions` (bodies of loops, conds and `shard_map` that are inlined in it),
`kind` (the family of a primitive, as far as fusion and cost go), `plan` (decisions for one graph, and loops to split or
tile), `layers` (equal layers folded into one name), `scope` (name stacks).
Algorithms on these data are in `jaxckpt.schedule`.
"""

from jaxckpt.ir.graph import (
    NO_EXCHANGE as NO_EXCHANGE,
    Exchange as Exchange,
    Graph as Graph,
    Op as Op,
    Phase as Phase,
    Value as Value,
)
from jaxckpt.ir.kind import Kind as Kind, Trait as Trait, kind_of as kind_of, trait_of as trait_of
from jaxckpt.ir.plan import (
    DECISIONS as DECISIONS,
    Decision as Decision,
    GraphPlan as GraphPlan,
    LoopSplit as LoopSplit,
    LoopTiling as LoopTiling,
    Moved as Moved,
    Offload as Offload,
    Partition as Partition,
    Prediction as Prediction,
    Recompute as Recompute,
    RowChunk as RowChunk,
    Save as Save,
    stage_at as stage_at,
)
from jaxckpt.ir.regions import Loop as Loop
