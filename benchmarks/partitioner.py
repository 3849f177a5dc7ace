"""Our plans against those of PyTorch's partitioner, on one GPT-2: FLOPs done again where the same bytes are kept.

    python -m benchmarks.partitioner

GPT-2 small, 8 x 1024 tokens, bfloat16 with softmax in float32, forward and backward, no update. PyTorch's figures are
those of torch 2.13.0, `torch.compile`'s partitioner with `activation_memory_budget` (knapsack "dp", estimator "flops").
It counts FLOPs and nothing else, so our solver is asked twice: with rates that make all but FLOPs free, and with those
of an H200. Both plans are compiled for it.

What its head keeps is left out: PyTorch keeps bfloat16 logits or makes them again; ours stay, alive at the peak
anyway.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import optax

from benchmarks.record import keep
from jaxckpt import Planner
from jaxckpt.cli.gpt2 import training_step
from jaxckpt.ir import Graph, GraphPlan, Kind, Phase
from jaxckpt.schedule import Run, schedule
from jaxckpt.solve import OptimalSolver

LAYERS, WIDTH, VOCABULARY, BATCH, SEQUENCE = 12, 768, 50304, 8, 1024
HEAD_GFLOP = 2 * BATCH * SEQUENCE * WIDTH * VOCABULARY / 1e9
PYTORCH = {
    "0.7": (314, 0, False),
    "0.6": (296, 13, False),
    "0.5": (232, 64, False),
    "0.4": (168, 116, False),
    "0.3": (119, 164, False),
    "0.2": (57, 763, False),
    "0.1": (62, 1348, True),
    "0.05": (31, 1648, True),
    "0.02": (12, 1870, True),
}
"""By memory budget: MiB kept per block, GFLOP done again, and whether the head's are among them; all rounded."""
_ROUNDING = 0.5
"""What rounds to the same MiB a block is as much. The smallest tensor that a block keeps but statistics has 12 MiB."""
_STEPS = 12
"""Of a bisection: temporaries are found to about 1 MiB."""


def main() -> None:
    planner = Planner(*gradients(), target="h200")
    by_seconds = planner.solver
    rates = planner.problem.rates
    free = replace(
        rates,
        memory_bandwidth_bytes_per_s=1e3 * rates.memory_bandwidth_bytes_per_s,
        vector_flops_per_s=1e3 * rates.vector_flops_per_s,
        launch_s=1e-3 * rates.launch_s,
    )
    by_flops = OptimalSolver(replace(planner.problem, rates=free))
    rows = {}
    for budget, (kept_mib, gflop, with_head) in PYTORCH.items():
        row = rows[budget] = {
            "kept_mib_per_block": kept_mib,
            "kept_bytes": int((kept_mib + _ROUNDING) * LAYERS * 2**20),
            "theirs": {"recomputed_gflop": gflop - (HEAD_GFLOP if with_head else 0.0)},
        }
        for name, solver in (("by flops", by_flops), ("by seconds", by_seconds)):
            plan, kept_bytes, flops = keeping(solver, planner.graph, most_bytes=row["kept_bytes"])
            compiled = planner.measure(plan).footprint
            row[name] = {
                "kept_bytes": kept_bytes, "recomputed_gflop": flops / 1e9,
                "total_bytes": compiled.total_bytes, "step_s": compiled.step_s,
            }  # fmt: skip
        print(
            f"{kept_mib:4} MiB a block: theirs {row['theirs']['recomputed_gflop']:7,.0f} GFLOP"
            + "".join(
                f", ours {name} {row[name]['recomputed_gflop']:7,.0f} in {1e3 * row[name]['step_s']:.2f} ms"
                for name in ("by flops", "by seconds")
            ),
            flush=True,
        )
    without = planner.unplanned
    keep("partitioner", {"no remat": {"total_bytes": without.total_bytes, "step_s": without.step_s}, "rows": rows})


def gradients() -> tuple[Callable[..., Any], Any, jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
    """Loss and gradients, and what they take."""
    made = training_step(layers=LAYERS, width=WIDTH, heads=WIDTH // 64, vocabulary=VOCABULARY, sequence=SEQUENCE)
    tokens = jax.ShapeDtypeStruct((BATCH, SEQUENCE), jnp.int32)

    def loss(params: Any, tokens: jax.Array, labels: jax.Array) -> jax.Array:
        logits = made.model.apply(params, tokens).astype(jnp.float32)
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, labels))

    return jax.value_and_grad(loss), made.args[0], tokens, tokens


def keeping(solver: OptimalSolver, graph: Graph, *, most_bytes: int) -> tuple[GraphPlan, int, float]:
    """Of all budgets of temporaries, the plan of the fewest FLOPs again that keeps so much in the blocks, or less.

    With it stands what it keeps and does again.
    """
    low, high = 0, solver.empty_plan.predicted.temp_bytes
    plan = solver.solve(low)
    found = [(plan, *kept_in_blocks(graph, plan))]
    for _ in range(_STEPS):
        middle = (low + high) // 2
        plan = solver.solve(middle)
        kept_bytes, flops = kept_in_blocks(graph, plan)
        if kept_bytes <= most_bytes:
            low = middle
            found.append((plan, kept_bytes, flops))
        else:
            high = middle
    return min(found, key=lambda each: each[2])


def kept_in_blocks(graph: Graph, plan: GraphPlan) -> tuple[int, float]:
    """Bytes that the backward reads of what the forward pass wrote within blocks, and the FLOPs of products again."""
    first: dict[int, int] = {}
    kept: set[int] = set()
    flops = 0.0
    for step in schedule(graph, plan).steps:
        if not isinstance(step, Run):  # a barrier: what passes it is what came
            first.update({w: first[r] for r, w in zip(step.reads, step.writes, strict=True) if r in first})
            continue
        op = graph.ops[step.op]
        if step.is_clone or op.phase is not Phase.FORWARD:
            kept.update(first[i] for i in step.reads if i in first)
        else:
            first.update(zip(step.writes, op.writes, strict=True))
        if step.is_clone and op.kind is Kind.CONTRACTION:
            flops += op.flops or 0
    in_blocks = (v for v in kept if "block_" in str(graph.ops[graph.producer[v]].scope))
    return sum(map(graph.residual_bytes, in_blocks)), flops


if __name__ == "__main__":
    main()
