"""The proof: compile a step for a target and read what XLA says that it takes.

Read in this order: `footprint_data` (the figures), `placement` (arguments on the target), `flat_step` (a step as flat
arrays), `compile` (the compiler's figures), `hlo_constants` (figures from its text), `failures` (its errors explained),
`side_by_side` (several steps in threads), `dump_folder` (files that XLA writes), `step_footprint` (all of it for a
step), `footprint_file`.
"""

from jaxckpt.compiler.compile import Compilation, LoweredStep, lower_flat
from jaxckpt.compiler.flat_step import flatten_step
from jaxckpt.compiler.footprint_data import Footprint
from jaxckpt.compiler.footprint_file import load_footprint
from jaxckpt.compiler.frame import frame_of_rows
from jaxckpt.compiler.side_by_side import compile_side_by_side, most_compiles
from jaxckpt.compiler.step_footprint import compile_step, footprint
from jaxckpt.compiler.xla_dump import footprint_of_dump

__all__ = [
    "Compilation",
    "Footprint",
    "LoweredStep",
    "compile_side_by_side",
    "compile_step",
    "flatten_step",
    "footprint",
    "footprint_of_dump",
    "frame_of_rows",
    "load_footprint",
    "lower_flat",
    "most_compiles",
]
