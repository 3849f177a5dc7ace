"""Rematerialisation decided while a program runs: DTR, DTE and Coop, and the memory that they live in.

Under a budget, which value goes when room is needed? DTR evicts what is cheap to bring back, large and stale; DTE
counts the free bytes beside a value as its own; Coop evicts neighbours in memory, and lays them out so that cheap ones
are neighbours. All three run here on one engine over any step's graph.

Read in this order: `program` (what is run), `from_graph` (one training step or several), `log` (DTR's format),
`evictors` and `memory` (the rules, as data), `state`, `pool`, `union_find`, `score`, `search`, `eviction`, `engine`
(the loops), `simulation` (what is said of a run), `simulator`, `addresses` (where everything lay), `online` (call by
call), `megengine` (the settings of DTE), `strategies` (a simulation as a plan). The subpackage `eager` runs a step on
real arrays, `compare` puts evictors beside each other. Every module is loaded when one of its names is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxckpt.dynamic.addresses import (
        AddressMap as AddressMap,
        Refusal as Refusal,
        Residence as Residence,
        address_map as address_map,
    )
    from jaxckpt.dynamic.compare import (
        EvictionOptions as EvictionOptions,
        EvictionRow as EvictionRow,
        Evictions as Evictions,
        TrainingOptions as TrainingOptions,
        address_maps as address_maps,
        compare_evictors as compare_evictors,
        evictions_report as evictions_report,
        simulation_report as simulation_report,
        stepper as stepper,
        stepper_page as stepper_page,
    )
    from jaxckpt.dynamic.eager import (
        EagerRun as EagerRun,
        Runner as Runner,
        ScopeSeconds as ScopeSeconds,
        run as run,
        timed_scopes as timed_scopes,
    )
    from jaxckpt.dynamic.evictors import (
        EVICTORS as EVICTORS,
        Cost as Cost,
        Evictor as Evictor,
        Search as Search,
        Size as Size,
        Staleness as Staleness,
        UnknownEvictorError as UnknownEvictorError,
        ablations as ablations,
        evictor as evictor,
        sampled as sampled,
    )
    from jaxckpt.dynamic.from_graph import eager_seconds as eager_seconds, program_from_graph as program_from_graph
    from jaxckpt.dynamic.kernel_program import (
        program_of_kernels as program_of_kernels,
        training_of_kernels as training_of_kernels,
    )
    from jaxckpt.dynamic.log import (
        log_from_program as log_from_program,
        program_from_log as program_from_log,
        read_log as read_log,
        write_log as write_log,
    )
    from jaxckpt.dynamic.megengine import megengine_dtr as megengine_dtr, megengine_dtr_config as megengine_dtr_config
    from jaxckpt.dynamic.memory import (
        MEMORIES as MEMORIES,
        Dealloc as Dealloc,
        Fit as Fit,
        Memory as Memory,
        Mode as Mode,
    )
    from jaxckpt.dynamic.online import Online as Online
    from jaxckpt.dynamic.pool import Pool as Pool, PoolError as PoolError
    from jaxckpt.dynamic.program import (
        Call as Call,
        Program as Program,
        ProgramError as ProgramError,
        Tensor as Tensor,
        unit_chain as unit_chain,
    )
    from jaxckpt.dynamic.simulation import (
        Event as Event,
        EventKind as EventKind,
        Simulation as Simulation,
        Status as Status,
    )
    from jaxckpt.dynamic.simulator import (
        RunOptions as RunOptions,
        min_budget as min_budget,
        simulate as simulate,
        unlimited_bytes as unlimited_bytes,
    )
    from jaxckpt.dynamic.state import Task as Task

_NAMES = {
    "addresses": "AddressMap Refusal Residence address_map",
    "compare": "EvictionOptions EvictionRow Evictions TrainingOptions address_maps compare_evictors"
    " evictions_report simulation_report stepper stepper_page",
    "eager": "EagerRun Runner ScopeSeconds run timed_scopes",
    "evictors": "EVICTORS Cost Evictor Search Size Staleness UnknownEvictorError ablations evictor sampled",
    "from_graph": "eager_seconds program_from_graph",
    "kernel_program": "program_of_kernels training_of_kernels",
    "log": "log_from_program program_from_log read_log write_log",
    "megengine": "megengine_dtr megengine_dtr_config",
    "memory": "MEMORIES Dealloc Fit Memory Mode",
    "online": "Online",
    "pool": "Pool PoolError",
    "program": "Call Program ProgramError Tensor unit_chain",
    "simulation": "Event EventKind Simulation Status",
    "simulator": "RunOptions min_budget simulate unlimited_bytes",
    "state": "Task",
}
"""The public names of each module, which is loaded when one of them is first used; type checkers read the imports."""

_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [*_HOMES]


if not TYPE_CHECKING:  # type checkers would take a misspelt name for one of any type

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module 'jaxckpt.dynamic' has no attribute {name!r}")
        return getattr(import_module(f"jaxckpt.dynamic.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
