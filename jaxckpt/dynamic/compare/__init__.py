"""Evictors beside each other, and beside plans: runs of several training steps, their reports and pictures.

Read in this order: `kernel_calls` and `kernel_program` (a step as its fused kernels), `unrolled_training` (several
steps of it in one memory), `evictor_comparison` (what each evictor recomputes), `address_maps` (where its values lie),
`report` and `page` (tables, and the memory step by step in a page).
"""

from jaxckpt.dynamic.compare.evictor_comparison import EvictionRow, Evictions, compare_evictors
from jaxckpt.dynamic.compare.kernel_program import program_of_kernels, training_of_kernels
from jaxckpt.dynamic.compare.page import stepper, stepper_page
from jaxckpt.dynamic.compare.placement import address_maps
from jaxckpt.dynamic.compare.report import eager_report, evictions_report, simulation_report

__all__ = [
    "EvictionRow",
    "Evictions",
    "address_maps",
    "compare_evictors",
    "eager_report",
    "evictions_report",
    "program_of_kernels",
    "simulation_report",
    "stepper",
    "stepper_page",
    "training_of_kernels",
]
