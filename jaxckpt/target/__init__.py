"""The machine that a step must fit on, whether it stands here or not.

Read in this order: `device_facts` (what is known of a device), `fact_files` (where that is written), `attainable`
(how fast it really is), `topology` (how many stand where), `packages` (who compiles for it), `devices` (what the
compiler is given), `attached` (what this process has), `target` (all of it under one name), `status` (which of
them can be used here).
"""

from jaxckpt.target.attainable import rates_from_facts
from jaxckpt.target.device_facts import CpuFacts, Facts, GpuFacts, TpuFacts, UnknownDeviceFacts
from jaxckpt.target.fact_files import facts_from_toml, known_facts, load_facts
from jaxckpt.target.status import TargetStatus, targets
from jaxckpt.target.target import Target
from jaxckpt.target.topology import GpuTopology, LocalTopology, Topology, TpuTopology

__all__ = [
    "CpuFacts",
    "Facts",
    "GpuFacts",
    "GpuTopology",
    "LocalTopology",
    "Target",
    "TargetStatus",
    "Topology",
    "TpuFacts",
    "TpuTopology",
    "UnknownDeviceFacts",
    "facts_from_toml",
    "known_facts",
    "load_facts",
    "rates_from_facts",
    "targets",
]
