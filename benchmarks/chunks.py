"""The loss head of GPT-2 small in pieces of rows, by itself and with the plan of least predicted memory, for an H200.

Compiled totals and estimated seconds for several numbers of pieces; 1 is the step as written.
"""

from typing import Any

import jax

from benchmarks.models import gpt2
from benchmarks.record import keep
from jaxckpt.compiler import Footprint
from jaxckpt.compiler.compile import lower_flat
from jaxckpt.machine import Target
from jaxckpt.planner import Planner
from jaxckpt.program.flat_program import constants_of, open_jaxpr
from jaxckpt.rewrite.chunk_rows import Chunk, with_chunk
from jaxckpt.rows import find_regions
from jaxckpt.solve import solve
from jaxckpt.trace import Traced, trace_step

PIECES = (1, 2, 4, 8, 16, 32)
TARGET = Target("h200")


def main() -> None:
    task = gpt2.step()
    traced = trace_step(task.step, *task.args, donate_argnums=task.donate_argnums)
    regions = find_regions(traced)
    rows = []
    for pieces in PIECES:
        region = regions.with_pieces(pieces)
        if region is None:
            continue
        changed = traced if pieces == 1 else with_chunk(traced, Chunk(region=region, pieces=pieces))
        planner = Planner.of_traced(changed, target=TARGET)
        footprints = {
            "unplanned": unplanned(changed),
            "least_memory": planner.measure(planner.solver.min_memory_plan).footprint,
            "full_recompute": planner.measure(solve(planner.problem, "full")).footprint,
        }
        row = {"pieces": pieces, "dimension": region.dimension, "rows": region.rows}
        rows.append(row | {name: figures(each) for name, each in footprints.items()})
        print(rows[-1], flush=True)
        keep("chunks", {"model": "gpt2-small, 8 x 1024, AdamW", "target": "h200", "rows": rows})


def unplanned(traced: Traced) -> Footprint:
    """The footprint of the step without decisions."""

    def call(*flat: jax.Array) -> list[Any]:
        return jax.core.eval_jaxpr(open_jaxpr(traced.jaxpr), constants_of(traced.jaxpr), *flat)

    lowered = lower_flat(call, traced.specs, target=TARGET, donated=traced.donated, name=traced.name)
    return lowered.compile().footprint


def figures(footprint: Footprint) -> dict[str, float]:
    """Bytes and estimated seconds."""
    return {
        "total_bytes": footprint.total_bytes,
        "temp_bytes": footprint.temp_bytes,
        "step_s": footprint.step_s,
    }


if __name__ == "__main__":
    main()
