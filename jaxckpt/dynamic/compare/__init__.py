"""Evictors beside each other, and beside plans: runs of several training steps, their reports and pictures.

Read in this order: `unrolled_training` (several training steps in one memory, and where values lie in it),
`evictor_comparison` (what each evictor recomputes), `report` (tables) and `page` (the memory after every call, drawn).
"""

from jaxckpt.dynamic.compare.evictor_comparison import (
    EvictionOptions as EvictionOptions,
    EvictionRow as EvictionRow,
    Evictions as Evictions,
    compare_evictors as compare_evictors,
)
from jaxckpt.dynamic.compare.page import stepper as stepper, stepper_page as stepper_page
from jaxckpt.dynamic.compare.report import (
    evictions_report as evictions_report,
    simulation_report as simulation_report,
)
from jaxckpt.dynamic.compare.unrolled_training import TrainingOptions as TrainingOptions, address_maps as address_maps
