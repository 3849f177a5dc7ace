"""Coop's figures: its eight networks under DTR, DTE and Coop at ten shares of their memory, and our static optimum.

    python -m benchmarks.coop                         # both bases, all networks, in two processes
    python -m benchmarks.coop --basis eager resnet50
    python -m benchmarks.coop --rules --basis kernels # without solving for the optimum again, which takes longest
    python -m benchmarks.coop --frozen unet           # what the rules do as plans, beside the optimum
    python -m benchmarks.coop --basis kernels --target benchmarks/a100-float32.toml
    python -m benchmarks.coop --ablations             # Coop without each of its parts
    python -m benchmarks.coop --densities             # how much dearer a byte of a product is than one of other ops

Networks are traced at their real sizes and never run; three training steps are simulated, parameters and all in one
memory, with seconds of one H200. Basis "kernels" is the step as it compiles; the static optimum stands there. Basis
"eager" is every op of JAX a kernel. GPT-3 is trained without momentum: with two moments for each of its 6.6 billion
parameters these would be 69% of the memory, and no rule could do anything below that.

Prints the tables and keeps the rows as `results/coop-eager`, `results/coop-kernels`, `results/coop-plans`,
`results/coop-ablations` and `results/coop-densities`. With another target its name comes last, as in
`results/coop-kernels-a100-float32`, and there is no optimum.
"""

import argparse
import dataclasses
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import optax

from benchmarks.models import COOP, MODELS
from benchmarks.record import keep, read
from jaxckpt._step import Step
from jaxckpt.dynamic import (
    MEMORIES,
    Evictions,
    Program,
    RunOptions,
    TrainingOptions,
    compare_evictors,
    evictions_report,
    simulate,
    unlimited_bytes,
)
from jaxckpt.dynamic.compare.evictor_comparison import OPTIMUM
from jaxckpt.dynamic.compare.unrolled_training import trained_step
from jaxckpt.machine import Target
from jaxckpt.report import render_text

RATIOS = (0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.7, 0.8, 0.9)
RULES = ("dtr", "dte", "coop", "coop_by_byte")
OTHERWISE = {"gpt3": {"optimiser": optax.sgd(1e-3)}}
"""Arguments of networks that are not as in the table of models."""
LIMIT = 4
"""A run that recomputes more than this many times its step is off every figure."""
PROCESSES = 2
TARGET = "h200"
ABLATED_RATIOS = (0.5, 0.6, 0.7, 0.8)
"""Shares of the ablations."""
_COOP = MEMORIES["coop"]
ABLATIONS = {
    "Coop": RunOptions(evictor="coop", memory=_COOP, limit=LIMIT),
    "one end": RunOptions(evictor="coop", memory=dataclasses.replace(_COOP, groups=1), limit=LIMIT),
    "states move": RunOptions(evictor="coop", memory=dataclasses.replace(_COOP, in_place=False), limit=LIMIT),
    "no window": RunOptions(evictor="dtr_oneflow", memory=_COOP, limit=LIMIT),
}
"""Coop without op-guided allocation, without recomputable in-place updates, and without its search."""


def program_of(name: str, target: Target | str = TARGET) -> Program:
    """Three training steps of a network, as kernels."""
    made = MODELS[name].step(**OTHERWISE.get(name, {}))
    step = Step.of(made.step, made.args, donate_argnums=made.donate_argnums, static_argnums=())
    return trained_step(step, TrainingOptions(target=target))[2]


def cost_density(program: Program) -> float:
    """Seconds for a byte written by products, over those of all other kernels; kernels that write over 1 MiB count."""
    price, written = {True: 0.0, False: 0.0}, {True: 0, False: 0}
    for call in program.calls:
        size_bytes = sum(program.tensors[t].size_bytes for t in call.writes)
        if size_bytes > 2**20:
            price[call.dense] += call.price
            written[call.dense] += size_bytes
    return price[True] / written[True] / (price[False] / written[False])


def ablation_rows(program: Program) -> dict[str, Any]:
    """The figures that are kept of each ablation of a program."""
    budgets, found = [int(ratio * unlimited_bytes(program)) for ratio in ABLATED_RATIOS], {}
    for name, options in ABLATIONS.items():
        runs = simulate(program, budget=budgets, options=options, processes=1)
        kept = ("ok", "overhead", "free_share", "search_s")
        found[name] = [{field: getattr(run, field) for field in kept} for run in runs]
    return found


def target_of(name: str) -> Target:
    """A target by its name, or by the path of a file that describes one."""
    return Target.from_facts(name) if name.endswith(".toml") else Target(name)


def measured(name: str, basis: str, target: str, optimum: bool, frozen: bool) -> tuple[Evictions, float]:
    """One network, and the seconds that it took."""
    begin = time.perf_counter()
    made = MODELS[name].step(**OTHERWISE.get(name, {}))
    found = compare_evictors(
        made.step,
        *made.args,
        evictors=RULES,
        ratios=RATIOS,
        basis=basis,
        target=target_of(target),
        optimum=optimum,
        frozen=frozen,
        limit=LIMIT,
        donate_argnums=made.donate_argnums,
    )
    return dataclasses.replace(found, step=name), time.perf_counter() - begin


def record(found: Evictions) -> dict[str, Any]:
    """What is kept of a network, by the keys of `results/coop-*`."""
    kept = dataclasses.asdict(found)
    return {"whole_bytes" if name == "unlimited_bytes" else name: figure for name, figure in kept.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("networks", nargs="*", default=list(COOP))
    parser.add_argument("--basis", choices=("eager", "kernels", "both"), default="both")
    parser.add_argument("--rules", action="store_true", help="the rules again; the optimum's rows are kept as they are")
    parser.add_argument("--frozen", action="store_true", help="what the rules do as plans, too: minutes a network")
    parser.add_argument("--target", default=TARGET, help="a target, or a file that describes one")
    parser.add_argument("--densities", action="store_true", help="the cost density of products on the target")
    parser.add_argument("--ablations", action="store_true", help="Coop without each of its parts")
    chosen = parser.parse_args()
    bases = ("eager", "kernels") if chosen.basis == "both" else (chosen.basis,)
    bases = ("kernels",) if chosen.frozen else bases
    os.environ["JAX_PLATFORMS"] = "cpu"
    if chosen.ablations:
        rows = {name: ablation_rows(program_of(name)) for name in chosen.networks}
        keep("coop-ablations", {"ratios": ABLATED_RATIOS, "networks": rows})
        return
    target = target_of(chosen.target)
    if chosen.densities:
        densities = {name: cost_density(program_of(name, target)) for name in chosen.networks}
        keep("coop-densities", {"targets": {**read("coop-densities")["targets"], target.facts.description: densities}})
        return
    suffix = "" if chosen.target == TARGET else f"-{Path(chosen.target).stem}"
    for basis in bases:
        begin = time.perf_counter()
        done: dict[str, tuple[Evictions, float]] = {}
        with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
            waiting = {
                pool.submit(measured, name, basis, chosen.target, not (chosen.rules or suffix), chosen.frozen): name
                for name in chosen.networks
            }
            for future in as_completed(waiting):
                name = waiting[future]
                done[name] = future.result()
                print(render_text(evictions_report(done[name][0])), f"{done[name][1]:.0f} s", flush=True)
        total_s = time.perf_counter() - begin
        rows = {name: {**record(done[name][0]), "seconds": done[name][1]} for name in chosen.networks}
        file = "coop-plans" if chosen.frozen else f"coop-{basis}{suffix}"
        for name, kept in read(file)["networks"].items() if chosen.rules and not suffix else ():
            rows[name]["rows"] += tuple(row for row in kept["rows"] if row["evictor"] == OPTIMUM)
        keep(file, {"limit": LIMIT, "seconds": total_s, "networks": rows})
        print(f"{basis}: {total_s:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
