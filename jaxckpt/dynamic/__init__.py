"""Rematerialisation decided while a program runs: DTR, DTE and Coop, and the memory that they live in.

Under a budget, which value goes when room is needed? DTR evicts what is cheap to bring back, large and stale; DTE
counts the free bytes beside a value as its own; Coop evicts neighbours in memory, and lays them out so that cheap ones
are neighbours. All three run here on one engine over any step's graph.

Read in this order: `program` (what is run), `from_graph`, `log` (DTR's format), `evictors` and `memory` (the rules, as
data), `state`, `pool`, `classes`, `score`, `window`, `search`, `eviction`, `banishing`,
`engine` (the loops), `simulate`.
"""

from jaxckpt.dynamic.evictors import (
    EVICTORS,
    Cost,
    Evictor,
    Search,
    Size,
    Staleness,
    UnknownEvictorError,
    ablations,
    evictor,
    sampled,
)
from jaxckpt.dynamic.from_graph import program_from_graph
from jaxckpt.dynamic.log import log_from_program, program_from_log, read_log, write_log
from jaxckpt.dynamic.memory import MEMORIES, Dealloc, Fit, Memory, Mode
from jaxckpt.dynamic.pool import Pool, PoolError
from jaxckpt.dynamic.program import Call, Program, ProgramError, Tensor, unit_chain
from jaxckpt.dynamic.simulate import live_bytes, simulate
from jaxckpt.dynamic.simulation import Event, EventKind, Simulation, Status

__all__ = [
    "EVICTORS",
    "MEMORIES",
    "Call",
    "Cost",
    "Dealloc",
    "Event",
    "EventKind",
    "Evictor",
    "Fit",
    "Memory",
    "Mode",
    "Pool",
    "PoolError",
    "Program",
    "ProgramError",
    "Search",
    "Simulation",
    "Size",
    "Staleness",
    "Status",
    "Tensor",
    "UnknownEvictorError",
    "ablations",
    "evictor",
    "live_bytes",
    "log_from_program",
    "program_from_graph",
    "program_from_log",
    "read_log",
    "sampled",
    "simulate",
    "unit_chain",
    "write_log",
]
