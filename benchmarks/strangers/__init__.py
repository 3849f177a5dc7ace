"""A battery of training steps that none of our models is, each planned at the totals that simple rules reach.

    python -m benchmarks.strangers [NAME ...] [--seconds 900]    # goes on where it stopped
    python -m benchmarks.strangers --tables

Simple rules are `jax.checkpoint` around each block with four policies, and the baselines `every:2`, `sqrt` and `full`.
Every step is compiled as written and by each rule; then the planner is asked for a plan at the compiled total of each
rule, and for the smallest total that it finds. One estimator (`Footprint.step_s`) times all of them.

`STRANGERS` has all steps by name: eight with a history, and others whose sizes and types a seeded generator draws.
`SMALL` names twelve whose small form suits a test. Read in this order: `training`, `layers`, any family, `table`,
`rules`, `questions`, `running`, `findings`.
"""

from benchmarks.strangers.table import SMALL, STRANGERS, Stranger

__all__ = ["SMALL", "STRANGERS", "Stranger"]
