"""The loss head of GPT-2 small in pieces of rows, for an H200: numbers of pieces by hand, and the planner's own choice.

By hand: compiled totals and estimated seconds for several numbers of pieces, without decisions, with the plan of least
predicted memory and with full recomputation; 1 is the step as written. By the planner: its plans for two budgets with
"chunk" allowed, and the seconds that it takes. `python -m benchmarks.chunks pieces` or `planned` measures one of both;
`python -m benchmarks.tables` makes the tables of docs/budgets.md.
"""

import argparse
import time
from typing import Any

import jax

from benchmarks.models import gpt2
from benchmarks.record import keep, read
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


BUDGETS = ("2.9GiB", "4.17GiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", nargs="*", help="pieces or planned; both without")
    for part in parser.parse_args().part or ("pieces", "planned"):
        {"pieces": by_hand, "planned": by_the_planner}[part]()


def keep_part(part: str, rows: list[dict[str, Any]]) -> None:
    """Writes one part of the result, beside the other one as it is."""
    try:
        known = read("chunks")
    except FileNotFoundError:
        known = {}
    others = {name: known[name] for name in ("pieces", "planned") if name in known}
    keep("chunks", {"model": "gpt2-small, 8 x 1024, AdamW", "target": "h200", **others, part: rows})


def by_the_planner() -> None:
    """The planner's plans for each budget, with "chunk" allowed."""
    task = gpt2.step()
    planner = Planner(
        task.step,
        *task.args,
        target=TARGET,
        donate_argnums=task.donate_argnums,
        allow=("recompute", "chunk"),
        progress=lambda sentence: print(sentence, flush=True),
    )
    rows = []
    for budget in BUDGETS:
        begin, known = time.monotonic(), planner.compile_count
        plan = planner.plan(budget=budget)
        assert plan.footprint is not None
        row = {
            "budget": budget,
            "pieces": [chunk.pieces for chunk in plan.row_chunks],
            "estimated_step_s": plan.estimated_step_s,
            "seconds": time.monotonic() - begin,
            "compile_s": sum(attempt.compile_s for attempt in plan.attempts),
            "compiles": planner.compile_count - known,
        }
        rows.append(row | figures(plan.footprint))
        print(rows[-1], flush=True)
        keep_part("planned", rows)


def by_hand() -> None:
    """The step in several numbers of pieces."""
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
        keep_part("pieces", rows)


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
