"""The proof: compile a step for a target and read what XLA says that it takes.

Read in this order: `figures` (what it takes), `placement` (arguments on the target), `flat_step` (a step as flat
arrays), `compile` (the compiler's answer), `program` (what its text adds), `refusals` (what it means when it
says no), `dump` (where it writes what it decided), `footprint` (all of it in one line), `file`.
"""

from jaxckpt.measure.compile import Compilation, compile_flat
from jaxckpt.measure.figures import Footprint
from jaxckpt.measure.file import load_footprint, save_footprint
from jaxckpt.measure.flat_step import FlatStep, flatten_step
from jaxckpt.measure.footprint import compile_step, footprint
from jaxckpt.measure.foreign import footprint_of_dump
from jaxckpt.measure.frame import footprint_frame, frame_of_rows

__all__ = [
    "Compilation",
    "FlatStep",
    "Footprint",
    "compile_flat",
    "compile_step",
    "flatten_step",
    "footprint",
    "footprint_frame",
    "footprint_of_dump",
    "frame_of_rows",
    "load_footprint",
    "save_footprint",
]
