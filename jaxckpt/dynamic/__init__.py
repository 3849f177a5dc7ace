"""Rematerialisation decided while a program runs: DTR, DTE and Coop, and the memory that they live in.

Under a budget, which value goes when room is needed? DTR evicts what is cheap to bring back, large and stale; DTE
counts the free bytes beside a value as its own; Coop evicts neighbours in memory, and lays them out so that cheap ones
are neighbours. All three run here on one engine over any step's graph.

Read in this order: `program` (what is run), `training` (several steps of it), `from_graph`, `log` (DTR's format),
`evictors` and `memory` (the rules, as data), `state`, `pool`, `union_find`, `score`, `sliding_window`, `search`,
`eviction`, `banishing`, `engine` (the loops), `simulation` and `outcome` (what is said of a run), `simulator`,
`addresses` (where everything lay), `online` (call by call), `strategies` (a simulation as a plan). The subpackage
`eager` runs a step on real arrays, `compare` puts evictors beside each other; both are loaded when one of their names
is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from jaxckpt.dynamic.addresses import AddressMap, Refusal, Residence, address_map
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
from jaxckpt.dynamic.from_graph import eager_seconds, program_from_graph
from jaxckpt.dynamic.log import log_from_program, program_from_log, read_log, write_log
from jaxckpt.dynamic.memory import MEMORIES, Dealloc, Fit, Memory, Mode
from jaxckpt.dynamic.online import Online
from jaxckpt.dynamic.pool import Pool, PoolError
from jaxckpt.dynamic.program import Call, Program, ProgramError, Tensor, unit_chain
from jaxckpt.dynamic.simulation import Event, EventKind, Simulation, Status
from jaxckpt.dynamic.simulator import live_bytes, simulate
from jaxckpt.dynamic.state import Task

if TYPE_CHECKING:
    from jaxckpt.dynamic.compare import (
        EvictionRow,
        Evictions,
        address_maps,
        compare_evictors,
        eager_report,
        evictions_report,
        simulation_report,
        stepper,
        stepper_page,
    )
    from jaxckpt.dynamic.eager import EagerRun, Runner, ScopeSeconds, run, timed_scopes
    from jaxckpt.dynamic.kernel_program import program_of_kernels, training_of_kernels

__all__ = [
    "EVICTORS",
    "MEMORIES",
    "AddressMap",
    "Call",
    "Cost",
    "Dealloc",
    "EagerRun",
    "Event",
    "EventKind",
    "EvictionRow",
    "Evictions",
    "Evictor",
    "Fit",
    "Memory",
    "Mode",
    "Online",
    "Pool",
    "PoolError",
    "Program",
    "ProgramError",
    "Refusal",
    "Residence",
    "Runner",
    "ScopeSeconds",
    "Search",
    "Simulation",
    "Size",
    "Staleness",
    "Status",
    "Task",
    "Tensor",
    "UnknownEvictorError",
    "ablations",
    "address_map",
    "address_maps",
    "compare_evictors",
    "eager_report",
    "eager_seconds",
    "evictions_report",
    "evictor",
    "live_bytes",
    "log_from_program",
    "program_from_graph",
    "program_from_log",
    "program_of_kernels",
    "read_log",
    "run",
    "sampled",
    "simulate",
    "simulation_report",
    "stepper",
    "stepper_page",
    "timed_scopes",
    "training_of_kernels",
    "unit_chain",
    "write_log",
]

_LAZY = {
    "compare": (
        *("EvictionRow", "Evictions", "address_maps", "compare_evictors", "eager_report", "evictions_report"),
        *("simulation_report", "stepper", "stepper_page"),
    ),
    "eager": ("EagerRun", "Runner", "ScopeSeconds", "run", "timed_scopes"),
    "kernel_program": ("program_of_kernels", "training_of_kernels"),
}
"""Names that need jax, solvers or reports, by the module that is loaded when one of them is first used."""


def __getattr__(name: str) -> Any:
    home = next((home for home, names in _LAZY.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module 'jaxckpt.dynamic' has no attribute {name!r}")
    return getattr(import_module(f"jaxckpt.dynamic.{home}"), name)
