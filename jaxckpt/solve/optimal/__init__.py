"""The optimal solver: one integer programme a stage, one that composes the stages.

Read in this order: `active_stage` (which stage is active at each step), `stage_problem` (a stage as a problem of its
own), `options` (what a stage can save: an integer programme), `offload_options` and `shard_options` (the same with
values on the host, or sharded), `stage_memory` (bytes alive while each stage is active), `compose` (one option for each
stage: an integer programme), `local_search` (single changes), `prefetch_schedule` (how far ahead loads start), `solver`
(all of it).
"""

from jaxckpt.solve.optimal.solver import OptimalSolver, solve_optimal

__all__ = [
    "OptimalSolver",
    "solve_optimal",
]
