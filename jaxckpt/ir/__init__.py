"""A training step, and what is decided about it, as frozen data: plain Python, no jax.

Read in this order: `graph` (ops and values), `loop` (loops whose bodies stand open in it), `shards` (and bodies of
`shard_map`), `stretches` (loops split into several), `nest` (and nested in two), `kind` (what a primitive is, as far as
fusing and pricing go), `decision` (what can happen to a value between forward and backward), `plan` (decisions for one
graph), `partition` (what is split where a decision leaves that open), `away` (when values leave and come back),
`possible` (what is refused), `light` (what is made of arguments alone), `sums` (gradients that several layers add to),
`zeros` (what scatters begin with), `steps` and `schedule` (the order of work that a plan asks for: what is cloned, and
what it waits for), `excerpt` (some ops as a step of their own), `layers` (equal layers said once), `scope` (what a
chain of names and transformations says).
"""

from jaxckpt.ir.decision import Decision, Offload, Partition, Recompute, Save
from jaxckpt.ir.excerpt import Excerpt, excerpt
from jaxckpt.ir.graph import Graph, Op, Phase, Value
from jaxckpt.ir.kind import Kind, Trait, kind_of, trait_of
from jaxckpt.ir.layers import Layers, fold_layers, layer_ranges, layers_from_ranges, unfolded_scope
from jaxckpt.ir.loop import Loop
from jaxckpt.ir.nest import Nest
from jaxckpt.ir.partition import settle, settled
from jaxckpt.ir.plan import Plan, Prediction
from jaxckpt.ir.residual import Residual, residuals
from jaxckpt.ir.schedule import schedule
from jaxckpt.ir.steps import Barrier, Move, Run, Schedule, Step
from jaxckpt.ir.stretches import Stretches

__all__ = [
    "Barrier",
    "Decision",
    "Excerpt",
    "Graph",
    "Kind",
    "Layers",
    "Loop",
    "Move",
    "Nest",
    "Offload",
    "Op",
    "Partition",
    "Phase",
    "Plan",
    "Prediction",
    "Recompute",
    "Residual",
    "Run",
    "Save",
    "Schedule",
    "Step",
    "Stretches",
    "Trait",
    "Value",
    "excerpt",
    "fold_layers",
    "kind_of",
    "layer_ranges",
    "layers_from_ranges",
    "residuals",
    "schedule",
    "settle",
    "settled",
    "trait_of",
    "unfolded_scope",
]
