"""Strategies of others, each a file that reads like its paper; all make the same `GraphPlan`s from the same `Problem`s.

Read in this order: `chain` (a step as a sequence of stages), `sqrt`, `revolve`, `rotor` (which stages of a chain
run again), `layers`, `megatron`, `mindspore` (which values do), `knapsack`, `mincut` (PyTorch's partitioner),
`checkmate` (all of it as one programme). JAX's own policies are in `jaxckpt.solve.policy_plan`; the evictors
of `jaxckpt.dynamic` are strategies too. `BASELINES` has them by name; docs/strategies.md says which values each one
saves, when it is good, and where it comes from.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from importlib import import_module
from types import MappingProxyType

from jaxckpt.ir import GraphPlan
from jaxckpt.solve.baselines import layers, mincut, mindspore
from jaxckpt.solve.baselines.checkmate import solve_checkmate
from jaxckpt.solve.baselines.megatron import solve_megatron
from jaxckpt.solve.baselines.mincut import sweep_min_cut
from jaxckpt.solve.baselines.mindspore import solve_mindspore
from jaxckpt.solve.baselines.revolve import sweep_revolve
from jaxckpt.solve.baselines.rotor import sweep_rotor
from jaxckpt.solve.baselines.sqrt import solve_every, solve_sqrt, solve_sqrt_greedy
from jaxckpt.solve.policy_plan import solve_names, solve_shipped
from jaxckpt.solve.problem import Problem
from jaxckpt.solve.strategy import Solver


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


BASELINES: Mapping[str, Solver] = MappingProxyType(
    {
        "every": Solver(solve=solve_every, option='k ("every:4"); 2 if not given', read=_every),
        "sqrt": Solver(
            solve=solve_sqrt,
            option='"sqrt:greedy": segments of equal bytes instead of equal length',
            read=_greedy,
        ),
        "revolve": Solver(sweep=sweep_revolve),
        "rotor": Solver(sweep=sweep_rotor),
        "dots": Solver(solve=partial(solve_shipped, policy="dots")),
        "dots_no_batch": Solver(solve=partial(solve_shipped, policy="dots_no_batch")),
        "elementwise_recomputed": Solver(solve=partial(solve_shipped, policy="elementwise_recomputed")),
        "names": Solver(
            solve=solve_names,
            option='a glob on the names ("names:{qkv,attn_out}"); all if not given',
            read=lambda names: Solver(solve=partial(solve_names, names=names)),
        ),
        "layers": Solver(
            solve=layers.solve_layers,
            option='a ready policy for each layer: "nothing", "dots", "dots_no_batch" or "elementwise_recomputed"'
            ' ("layers:dots")',
            read=layers.read_option,
        ),
        "mincut": Solver(
            sweep=sweep_min_cut,
            option='"dp", "greedy" or "ilp" (knapsack), and a share of bytes in place of a budget ("mincut:ilp,0.5")',
            read=mincut.read_option,
        ),
        "megatron": Solver(
            solve=solve_megatron,
            option='a glob on scopes ("megatron:*/core_attn"); found by structure if not given',
            read=lambda scope: Solver(solve=partial(solve_megatron, scope=scope)),
        ),
        "mindspore": Solver(
            solve=solve_mindspore,
            option='bytes above which kernels are recomputed, for long and for short edges ("mindspore:1MiB,4MiB")',
            read=mindspore.read_option,
        ),
        "checkmate": Solver(solve_within=solve_checkmate),
        **{name: Solver(sweep=partial(_sweep_evicted, evictor=name)) for name in ("dtr", "dte", "coop")},
    }
)
"""By the name that `strategy=` takes."""
