"""Rematerialisation decided while a program runs: DTR, DTE and Coop, and the memory that they live in.

Under a budget, which value goes when room is needed? DTR evicts what is cheap to bring back, large and stale; DTE
counts the free bytes beside a value as its own; Coop evicts neighbours in memory, and lays them out so that cheap ones
are neighbours. All three run here on one engine over any step's graph.

Read in this order: `program` (what is run), `from_graph` (one training step or several), `log` (DTR's format),
`evictors` and `memory` (the rules, as data), `state`, `pool`, `union_find`, `score`, `search`, `eviction`, `engine`
(the loops), `simulation` (what is said of a run), `simulator`, `addresses` (where everything lay), `online` (call by
call), `strategies` (a simulation as a plan). The subpackage `eager` runs a step on real arrays, `compare` puts evictors
beside each other. Every module is loaded when one of its names is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxckpt.dynamic.addresses import AddressMap as AddressMap
    from jaxckpt.dynamic.addresses import Refusal as Refusal
    from jaxckpt.dynamic.addresses import Residence as Residence
    from jaxckpt.dynamic.addresses import address_map as address_map
    from jaxckpt.dynamic.compare import EvictionOptions as EvictionOptions
    from jaxckpt.dynamic.compare import EvictionRow as EvictionRow
    from jaxckpt.dynamic.compare import Evictions as Evictions
    from jaxckpt.dynamic.compare import TrainingOptions as TrainingOptions
    from jaxckpt.dynamic.compare import address_maps as address_maps
    from jaxckpt.dynamic.compare import compare_evictors as compare_evictors
    from jaxckpt.dynamic.compare import eager_report as eager_report
    from jaxckpt.dynamic.compare import evictions_report as evictions_report
    from jaxckpt.dynamic.compare import simulation_report as simulation_report
    from jaxckpt.dynamic.compare import stepper as stepper
    from jaxckpt.dynamic.compare import stepper_page as stepper_page
    from jaxckpt.dynamic.eager import EagerRun as EagerRun
    from jaxckpt.dynamic.eager import Runner as Runner
    from jaxckpt.dynamic.eager import ScopeSeconds as ScopeSeconds
    from jaxckpt.dynamic.eager import run as run
    from jaxckpt.dynamic.eager import timed_scopes as timed_scopes
    from jaxckpt.dynamic.evictors import EVICTORS as EVICTORS
    from jaxckpt.dynamic.evictors import Cost as Cost
    from jaxckpt.dynamic.evictors import Evictor as Evictor
    from jaxckpt.dynamic.evictors import Search as Search
    from jaxckpt.dynamic.evictors import Size as Size
    from jaxckpt.dynamic.evictors import Staleness as Staleness
    from jaxckpt.dynamic.evictors import UnknownEvictorError as UnknownEvictorError
    from jaxckpt.dynamic.evictors import ablations as ablations
    from jaxckpt.dynamic.evictors import evictor as evictor
    from jaxckpt.dynamic.evictors import sampled as sampled
    from jaxckpt.dynamic.from_graph import eager_seconds as eager_seconds
    from jaxckpt.dynamic.from_graph import program_from_graph as program_from_graph
    from jaxckpt.dynamic.kernel_program import program_of_kernels as program_of_kernels
    from jaxckpt.dynamic.kernel_program import training_of_kernels as training_of_kernels
    from jaxckpt.dynamic.log import log_from_program as log_from_program
    from jaxckpt.dynamic.log import program_from_log as program_from_log
    from jaxckpt.dynamic.log import read_log as read_log
    from jaxckpt.dynamic.log import write_log as write_log
    from jaxckpt.dynamic.memory import MEMORIES as MEMORIES
    from jaxckpt.dynamic.memory import Dealloc as Dealloc
    from jaxckpt.dynamic.memory import Fit as Fit
    from jaxckpt.dynamic.memory import Memory as Memory
    from jaxckpt.dynamic.memory import Mode as Mode
    from jaxckpt.dynamic.online import Online as Online
    from jaxckpt.dynamic.pool import Pool as Pool
    from jaxckpt.dynamic.pool import PoolError as PoolError
    from jaxckpt.dynamic.program import Call as Call
    from jaxckpt.dynamic.program import Program as Program
    from jaxckpt.dynamic.program import ProgramError as ProgramError
    from jaxckpt.dynamic.program import Tensor as Tensor
    from jaxckpt.dynamic.program import unit_chain as unit_chain
    from jaxckpt.dynamic.simulation import Event as Event
    from jaxckpt.dynamic.simulation import EventKind as EventKind
    from jaxckpt.dynamic.simulation import Simulation as Simulation
    from jaxckpt.dynamic.simulation import Status as Status
    from jaxckpt.dynamic.simulator import RunOptions as RunOptions
    from jaxckpt.dynamic.simulator import live_bytes as live_bytes
    from jaxckpt.dynamic.simulator import simulate as simulate
    from jaxckpt.dynamic.state import Task as Task

_NAMES = {
    "addresses": "AddressMap Refusal Residence address_map",
    "compare": "EvictionOptions EvictionRow Evictions TrainingOptions address_maps compare_evictors"
    " eager_report evictions_report simulation_report stepper stepper_page",
    "eager": "EagerRun Runner ScopeSeconds run timed_scopes",
    "evictors": "EVICTORS Cost Evictor Search Size Staleness UnknownEvictorError ablations evictor sampled",
    "from_graph": "eager_seconds program_from_graph",
    "kernel_program": "program_of_kernels training_of_kernels",
    "log": "log_from_program program_from_log read_log write_log",
    "memory": "MEMORIES Dealloc Fit Memory Mode",
    "online": "Online",
    "pool": "Pool PoolError",
    "program": "Call Program ProgramError Tensor unit_chain",
    "simulation": "Event EventKind Simulation Status",
    "simulator": "RunOptions live_bytes simulate",
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
