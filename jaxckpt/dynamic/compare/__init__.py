"""Evictors beside each other, and beside plans: runs of several training steps, their reports and pictures.

Read in this order: `unrolled_training` (several training steps in one memory, and where values lie in it),
`evictor_comparison` (what each evictor recomputes), `report` (tables) and `page` (the memory after every call, drawn).
"""

from jaxckpt.dynamic.compare.evictor_comparison import EvictionOptions, EvictionRow, Evictions, compare_evictors
from jaxckpt.dynamic.compare.page import stepper, stepper_page
from jaxckpt.dynamic.compare.report import eager_report, evictions_report, simulation_report
from jaxckpt.dynamic.compare.unrolled_training import TrainingOptions, address_maps

__all__ = [
    "EvictionOptions",
    "EvictionRow",
    "Evictions",
    "TrainingOptions",
    "address_maps",
    "compare_evictors",
    "eager_report",
    "evictions_report",
    "simulation_report",
    "stepper",
    "stepper_page",
]
