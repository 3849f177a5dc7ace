"""A graph and a plan become a schedule: the order of work that the plan asks for (list scheduling).

Plain Python, no jax. Read in this order: `partition` (which axis is sharded where a decision leaves that open),
`prefetch` (when offloaded values are stored and loaded), `validate` (which decisions are refused), `argument_derived`
(values computed from arguments by views and elementwise ops alone), `grad_accumulators` (gradients that several layers
add to), `scatter_inits` (zeros that a scatter adds to), `steps` (runs, barriers and transfers), `schedule` (the
algorithm), `subgraph` (the subgraph induced by some ops).
"""

from jaxckpt.schedule.partition import decisions_with_axes, partition_with_axes
from jaxckpt.schedule.schedule import schedule
from jaxckpt.schedule.steps import Barrier, Move, Run, Schedule, Step
from jaxckpt.schedule.subgraph import Subgraph, induced_subgraph

__all__ = [
    "Barrier",
    "Move",
    "Run",
    "Schedule",
    "Step",
    "Subgraph",
    "decisions_with_axes",
    "induced_subgraph",
    "partition_with_axes",
    "schedule",
]
