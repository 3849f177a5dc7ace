"""Strategies of others, each a file that reads like its paper; all make the same `GraphPlan`s from the same `Problem`s.

Read in this order: `chain` (a step as a sequence of stages), `sqrt`, `revolve`, `rotor` (which stages of a chain
run again), `by_names`, `layers`, `megatron`, `mindspore` (which values do), `knapsack`, `mincut` (PyTorch's
partitioner), `checkmate` (all of it as one integer programme). The evictors of `jaxckpt.dynamic` are strategies too. `BASELINES` is
their table; docs/strategies.md shows it.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from importlib import import_module
from types import MappingProxyType

from jaxckpt.ir import GraphPlan
from jaxckpt.solve.baselines import layers, mincut, mindspore
from jaxckpt.solve.baselines.by_names import solve_dots, solve_dots_no_batch, solve_names
from jaxckpt.solve.baselines.checkmate import solve_checkmate
from jaxckpt.solve.baselines.megatron import solve_megatron
from jaxckpt.solve.baselines.mincut import sweep_min_cut
from jaxckpt.solve.baselines.mindspore import solve_mindspore
from jaxckpt.solve.baselines.revolve import sweep_revolve
from jaxckpt.solve.baselines.rotor import sweep_rotor
from jaxckpt.solve.baselines.sqrt import solve_every, solve_sqrt, solve_sqrt_greedy
from jaxckpt.solve.problem import Problem
from jaxckpt.solve.strategy import Solver, Strategy


def _sweep_evicted(problem: Problem, *, evictor: str) -> Iterator[GraphPlan]:
    """Plans of an evictor; the dynamic engine is loaded when they are asked for, so that planning never does."""
    yield from import_module("jaxckpt.dynamic.strategies").sweep_evicted(problem, evictor=evictor)


def _every(text: str) -> Solver:
    if not text.isdigit() or int(text) < 1:
        raise ValueError(f"{text!r} is no whole number from 1 on")
    return Solver(solve=partial(solve_every, k=int(text)))


def _greedy(text: str) -> Solver:
    if text != "greedy":
        raise ValueError(f"{text!r} is no variant")
    return Solver(solve=solve_sqrt_greedy)


BASELINES: Mapping[str, Strategy] = MappingProxyType(
    {
        "every": Strategy(
            solver=Solver(solve=solve_every),
            keeps="the boundary before every k-th stage; stages are found by structure",
            good="a first try by hand; k stages are recomputed together",
            source="Chen et al. 2016, section 4.1",
            option='k ("every:4"); 2 if not given',
            read=_every,
        ),
        "sqrt": Strategy(
            solver=Solver(solve=solve_sqrt),
            keeps="the boundaries between about sqrt(n) segments of the n stages",
            good="deep stacks of equal layers, without a budget",
            source="Chen et al. 2016, section 4.1; algorithm 3 for the greedy variant",
            option='"sqrt:greedy": segments of equal bytes instead of equal length',
            read=_greedy,
        ),
        "revolve": Strategy(
            solver=Solver(sweep=sweep_revolve),
            keeps="the snapshots of the first sweep of the binomial schedule, their number from the budget",
            good="long chains of equal steps; a plan recomputes each step once, revolve itself possibly many times",
            source="Griewank and Walther 2000; Griewank 1992 (treeverse)",
        ),
        "rotor": Strategy(
            solver=Solver(sweep=sweep_rotor),
            keeps="all values of some stages, only the input of others, by dynamic programming over the budget",
            good="chains of unequal stages, such as ResNets",
            source="Beaumont et al. 2019, theorem 1, with each stage run at most twice",
        ),
        "dots": Strategy(
            solver=Solver(solve=solve_dots),
            keeps="results of matrix products and convolutions",
            good="models whose time is in products, with memory for attention's scores",
            source="`jax.checkpoint_policies.dots_saveable`",
        ),
        "dots_no_batch": Strategy(
            solver=Solver(solve=solve_dots_no_batch),
            keeps="results of products of activations with weights",
            good="transformers: attention scores are recomputed",
            source="`jax.checkpoint_policies.dots_with_no_batch_dims_saveable`",
        ),
        "names": Strategy(
            solver=Solver(solve=solve_names),
            keeps="the values that `checkpoint_name` names",
            good="models whose authors have named the values to save",
            source="`jax.checkpoint_policies.save_only_these_names`",
            option='a glob on the names ("names:{qkv,attn_out}"); all if not given',
            read=lambda names: Solver(solve=partial(solve_names, names=names)),
        ),
        "layers": Strategy(
            solver=Solver(solve=layers.solve_layers),
            keeps="the inputs of each layer, and in it what a policy saves; layers are found by their scopes",
            good="models whose modules have names: `jax.checkpoint` or `nn.remat` around each of them",
            source="`flax.linen.remat`, `jax.checkpoint`",
            option='values that are saved in a layer: "nothing", "dots" or "dots_no_batch" ("layers:dots")',
            read=layers.read_option,
        ),
        "mincut": Strategy(
            solver=Solver(sweep=sweep_min_cut),
            keeps="the minimum cut in bytes, where a knapsack has chosen the ops that are not recomputed",
            good="a comparison with torch.compile; few saved bytes, without regard to the peak",
            source="PyTorch, torch/_functorch/partitioners.py",
            option='"dp", "greedy" or "ilp" (knapsack), and a share of bytes in place of a budget ("mincut:ilp,0.5")',
            read=mincut.read_option,
        ),
        "megatron": Strategy(
            solver=Solver(solve=solve_megatron),
            keeps="all but the core of each attention: scores, softmax, weights",
            good="long sequences with attention written out; no effect if attention is one kernel",
            source="Korthikanti et al. 2022, section 5",
            option='a glob on scopes ("megatron:*/core_attn"); found by structure if not given',
            read=lambda scope: Solver(solve=partial(solve_megatron, scope=scope)),
        ),
        "mindspore": Strategy(
            solver=Solver(solve=solve_mindspore),
            keeps="all but results of fused kernels whose inputs are available",
            good="some memory for almost no time: activations, normalisations",
            source="MindSpore, graph_kernel_recompute.cc",
            option='bytes above which kernels are recomputed, for long and for short edges ("mindspore:1MiB,4MiB")',
            read=mindspore.read_option,
        ),
        "checkmate": Strategy(
            solver=Solver(solve_within=solve_checkmate),
            keeps="the values chosen by one integer programme over the full step",
            good="small steps, of a few dozen kernels at most, and comparisons",
            source="Jain et al. 2020",
        ),
        "dtr": Strategy(
            solver=Solver(sweep=partial(_sweep_evicted, evictor="dtr")),
            keeps="the values that DTR does not evict in a simulated run of the step's kernels",
            good="steps whose structure gives no good stages; comparisons",
            source="Kirisame et al. 2021 (h_DTR^eq)",
        ),
        "dte": Strategy(
            solver=Solver(sweep=partial(_sweep_evicted, evictor="dte")),
            keeps="as `dtr`, by DTE, which adds adjacent free memory to the size of a value",
            good="comparisons",
            source="Hu et al. 2022 (MegTaiChi)",
        ),
        "coop": Strategy(
            solver=Solver(sweep=partial(_sweep_evicted, evictor="coop")),
            keeps="as `dtr`, by Coop, which evicts values that are adjacent in memory",
            good="comparisons; where the allocator's fragmentation matters",
            source="Zhang et al. 2023",
        ),
    }
)
"""By the name that `strategy=` takes."""

__all__ = ["BASELINES"]
