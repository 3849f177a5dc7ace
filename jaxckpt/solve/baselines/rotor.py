"""Rotor: the dynamic programme for chains of unequal stages, where a stage keeps everything or its input alone.

For the stages s..t and m bytes beside the input of s, the best time C(s, t, m) is the smaller of two:

    C1 = min over s < s' <= t of  sum_{k=s}^{s'-1} uf_k + C(s', t, m - wa_{s'-1}) + C(s, s'-1, m)    keep the input
    C2 = uf_s + C(s+1, t, m - wabar_s) + ub_s                                                        keep everything

`optimum` is that programme. In C1 the part left of s' may be split again, so that a stage runs many times. A plan
computes a value again once; `choices` is the same programme with the left part run again whole and everything in it
kept.

Source: Beaumont, Eyraud-Dubois, Herrmann, Joly, Shilova 2019, "Optimal checkpointing for heterogeneous chains: how to
train deep neural networks with limited memory" (arXiv:1911.13214), theorem 1. Memory is counted in slots, as theirs.
Complexity: n^3 x slots for `optimum`, n^2 x slots for `choices`. Read after `chain`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from jaxckpt.ir import GraphPlan, Phase
from jaxckpt.solve.baselines.chain import chain, recompute, stage_bytes
from jaxckpt.solve.problem import Problem
from jaxckpt.solve.stages import members

_SLOTS = 500
"""Slots of memory. With 250 plans are 0.3% slower, with 1000 they are the same (`python -m benchmarks.constants`)."""
_SWEPT = 24
"""The programme's memory is swept in so many steps; a replay of each plan says what it really takes. With 12 plans are
0.1% slower, with 48 0.5% faster, in a third more time (`python -m benchmarks.constants`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainStage:
    """A stage of a chain.

    Attributes:
      forward_s: uf, seconds of its forward pass.
      backward_s: ub, seconds of its backward pass.
      input: Slots of its input, the wa of the stage before.
      kept: wabar, slots of all that its backward needs besides the input.
    """

    forward_s: float
    backward_s: float
    input: int
    kept: int


def sweep_rotor(problem: Problem) -> Iterator[GraphPlan]:
    """Plans of stages that keep everything, and segments that keep their input and run again whole."""
    stages = chain(problem)
    links = _links(problem, stages)
    most = sum(link.kept + link.input for link in links)
    found = dict.fromkeys(choices(links, max(1, most * k // _SWEPT)) for k in range(1, _SWEPT + 1))
    for chosen in filter(None, found):
        starts = tuple(stages[first] for first, _, _ in chosen)
        yield recompute(problem, starts, (k for k, (_, _, recomputed) in enumerate(chosen) if recomputed), "rotor")


def optimum(links: Sequence[ChainStage], memory: int) -> float:
    """The least seconds of forward and backward over a chain, stages run as often as it takes; infinite if none fits.

    `memory` counts slots, the input of the first stage among them.

    Example:
      >>> equal = [ChainStage(forward_s=1, backward_s=0, input=1, kept=5)] * 4
      >>> optimum(equal, memory=20), optimum(equal, memory=8), optimum(equal, memory=5)
      (5.0, 8.0, inf)
    """
    room = memory - links[0].input
    if room < 0:
        return np.inf
    best: dict[tuple[int, int], np.ndarray] = {}
    for t in range(len(links)):
        for s in range(t, -1, -1):
            link = links[s]
            keep_all = np.full(room + 1, link.forward_s + link.backward_s, dtype=float)
            if s < t:
                keep_all = keep_all + _with_less(best[s + 1, t], link.kept)
            keep_all[: min(room + 1, link.kept)] = np.inf
            best[s, t], run_s = keep_all, 0.0
            for split in range(s + 1, t + 1):
                run_s += links[split - 1].forward_s
                keep_input = run_s + _with_less(best[split, t], links[split].input) + best[s, split - 1]
                best[s, t] = np.minimum(best[s, t], keep_input)
    return float(best[0, len(links) - 1][room])


def choices(links: Sequence[ChainStage], memory: int) -> tuple[tuple[int, int, bool], ...] | None:
    """The least time in which every stage runs at most twice: stretches of stages; None where nothing fits.

    A stretch is its first stage, the first of the next, and True if it runs again.
    """
    room, length = memory - links[0].input, len(links)
    if room < 0:
        return None
    best = [np.full(room + 1, np.inf) for _ in links] + [np.zeros(room + 1)]
    taken = [np.zeros(room + 1, dtype=int) for _ in links]
    for s in range(length - 1, -1, -1):
        keep_all = _with_less(best[s + 1], links[s].kept)
        keep_all[: min(room + 1, links[s].kept)] = np.inf
        best[s], kept, run_s = keep_all, 0, 0.0
        for split in range(s + 1, length):
            kept, run_s = kept + links[split - 1].kept, run_s + links[split - 1].forward_s
            keep_input = run_s + _with_less(best[split], links[split].input)
            keep_input[: min(room + 1, kept)] = np.inf
            better = keep_input < best[s]
            best[s], taken[s] = np.where(better, keep_input, best[s]), np.where(better, split, taken[s])
    return None if np.isinf(best[0][room]) else _walk(links, taken, room)


def _walk(links: Sequence[ChainStage], taken: Sequence[np.ndarray], room: int) -> tuple[tuple[int, int, bool], ...]:
    """The stretches that the programme took; neighbours that keep everything are one."""
    found: list[tuple[int, int, bool]] = []
    s = 0
    while s < len(links):
        split = int(taken[s][room])
        if split:
            found.append((s, split, True))
            s, room = split, room - links[split].input
        else:
            first = found.pop()[0] if found and not found[-1][2] else s
            found.append((first, s + 1, False))
            s, room = s + 1, room - links[s].kept
    return tuple(found)


def _with_less(seconds: np.ndarray, slots: int) -> np.ndarray:
    """The same function of memory where `slots` of it are taken."""
    shifted = np.full_like(seconds, np.inf)
    if slots < len(seconds):
        shifted[slots:] = seconds[: len(seconds) - slots]
    return shifted


def _links(problem: Problem, stages: tuple[int, ...]) -> list[ChainStage]:
    """The chain in slots."""
    graph, (kept, enter) = problem.graph, stage_bytes(problem, stages)
    slot_bytes = max(1.0, (sum(kept) + sum(enter)) / _SLOTS)
    backward_s = sum(problem.op_s[op.id] for op in graph.ops if op.phase is not Phase.FORWARD) / len(stages)
    return [
        ChainStage(
            forward_s=sum(problem.op_s[op] for op in within),
            backward_s=backward_s,
            input=round(into / slot_bytes),
            kept=round(size / slot_bytes),
        )
        for within, into, size in zip(members(graph, stages), enter, kept, strict=True)
    ]
