"""A graph and a plan become a schedule: the order of work that the plan asks for (list scheduling).

Plain Python, no jax. Read in this order:

- `partition`: the axis over which a decision shards, where the decision leaves that open;
- `prefetch`: when offloaded values are stored and loaded;
- `validate`: which decisions are refused;
- `argument_derived`, `initialisers`: values computed from arguments by views and elementwise ops alone, zeros that a
  scatter adds to or a loop begins with;
- `steps`: runs, barriers and moves, and how they are numbered;
- `transfers`, `passing`, `recomputation`: copies, gradients and weights that pass barriers, what can be read after the
  forward pass and clones of the rest;
- `schedule`: the rules, and the walk over all ops;
- `subgraph`: the subgraph induced by some ops;
- `layout`: axis orders in memory, and products that are copied for them.
"""

from jaxckpt.schedule.partition import (
    decisions_with_axes as decisions_with_axes,
    partition_with_axes as partition_with_axes,
)
from jaxckpt.schedule.schedule import schedule as schedule
from jaxckpt.schedule.steps import (
    Barrier as Barrier,
    Move as Move,
    Run as Run,
    Schedule as Schedule,
    ScheduleStep as ScheduleStep,
)
