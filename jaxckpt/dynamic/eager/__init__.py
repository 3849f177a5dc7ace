"""A step run eagerly under a budget, op by op: real arrays are evicted and computed again while it runs.

Nothing is compiled but single ops, which JAX keeps by their shapes, so a step may come with other shapes at every call.
The engine of `jaxckpt.dynamic` decides; here its decisions are carried out.

Read in this order: `operation` (one op on arrays, and what it costs, measured as it runs), `program` (a step as a
program of operations), `arrays` (what is in memory), `runner`; and `scope_seconds` (how long each scope takes, without
a budget).
"""

from jaxckpt.dynamic.eager.runner import EagerRun as EagerRun, Runner as Runner, run as run
from jaxckpt.dynamic.eager.scope_seconds import ScopeSeconds as ScopeSeconds, timed_scopes as timed_scopes
