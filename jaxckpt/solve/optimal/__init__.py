"""The optimal solver: an integer programme for each stage, and a composition of the stages.

Read in this order: `stage_problem` (a stage as a problem of its own, and which stage is active at each step), `options`
(what a stage can save: an integer programme), `moved_options` (the same with values on the host, or sharded),
`stage_memory` (bytes alive while each stage is active), `chain` and `compose` (one option for each stage: by dynamic
programming for chains, by an integer programme for all else), `local_search` (single changes), `prefetch_schedule` (how
far ahead loads start), `solver` (all of it).
"""

from jaxckpt.solve.optimal.solver import OptimalSolver as OptimalSolver, solve_optimal as solve_optimal
