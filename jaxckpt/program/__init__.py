"""One level of equations: jaxprs with their calls, loops and branches inlined.

Read in this order: `flat_program` (equations of one level, and their name stacks), `open_loops`, `open_shard_map`
(bodies become equations), `inline` (calls both), `simplify` (common subexpression elimination of rematerialised clones,
dead code elimination). The way back is `jaxckpt.outline`.
"""

from jaxckpt.program.flat_program import Equation as Equation, FlatProgram as FlatProgram
