"""A training step, and what is decided about it, as frozen data: plain Python, no jax, no algorithm.

Read in this order: `graph` (ops and values), `loop` (loops whose bodies are inlined in it), `shard_map` and `branch`
(bodies of `shard_map` and `cond`, likewise), `kind` (the family of a primitive, as far as fusion and cost go),
`decision` (save, recompute, offload, partition), `loop_split` and `loop_tiling` (loop transformations that a plan asks
for), `plan` (decisions for one graph), `residual` (forward values that the backward reads), `layers` (equal layers
folded into one name), `scope` (name stacks). What is computed from these data is in `jaxckpt.schedule`.
"""

from jaxckpt.ir.decision import Decision, Offload, Partition, Recompute, Save
from jaxckpt.ir.graph import Graph, Op, Phase, Value
from jaxckpt.ir.kind import Kind, Trait, kind_of, trait_of
from jaxckpt.ir.layers import Layers, fold_layers, layer_ranges, layers_from_ranges, unfolded_scope
from jaxckpt.ir.loop import Loop
from jaxckpt.ir.loop_split import LoopSplit
from jaxckpt.ir.loop_tiling import LoopTiling
from jaxckpt.ir.plan import GraphPlan, Prediction
from jaxckpt.ir.residual import Residual, residuals

__all__ = [
    "Decision",
    "Graph",
    "GraphPlan",
    "Kind",
    "Layers",
    "Loop",
    "LoopSplit",
    "LoopTiling",
    "Offload",
    "Op",
    "Partition",
    "Phase",
    "Prediction",
    "Recompute",
    "Residual",
    "Save",
    "Trait",
    "Value",
    "fold_layers",
    "kind_of",
    "layer_ranges",
    "layers_from_ranges",
    "residuals",
    "trait_of",
    "unfolded_scope",
]
