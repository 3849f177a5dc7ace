"""The proof: compile a step for a target and read what XLA says that it takes.

Read in this order: `footprint_data` (the figures, in files and frames), `placement` (arguments on the target),
`compile_options` (XLA options), `product_kernels` (the matrix products that are cuBLAS's), `caveats` (what the figures
leave out), `failures` (errors of compilers explained), `compile` (the compiler's figures), `side_by_side` (several
steps in threads), `step_footprint` (all of it for a step), `xla_dump` (the footprint of a program that another process
compiled).
"""

from jaxckpt.compiler.compile import Compilation as Compilation, LoweredStep as LoweredStep, lower_flat as lower_flat
from jaxckpt.compiler.footprint_data import (
    Footprint as Footprint,
    frame_of_rows as frame_of_rows,
    load_footprint as load_footprint,
)
from jaxckpt.compiler.side_by_side import compile_side_by_side as compile_side_by_side, most_compiles as most_compiles
from jaxckpt.compiler.step_footprint import (
    compile_step as compile_step,
    footprint as footprint,
    lower_step as lower_step,
)
from jaxckpt.compiler.xla_dump import footprint_of_dump as footprint_of_dump
