"""Composition of stages in a chain: one option for each stage, by dynamic programming.

Most networks are chains: while a stage is active, the values of all stages before it are saved, and no others. Then
only the saved bytes of the stages before matter for a stage, not how they were chosen. For each sum of seconds the
programme keeps the least saved bytes,

    least[s + 1][t + seconds_sk] = min over k of  least[s][t] + saved_sk    where least[s][t] + own_sk <= budget

with seconds rounded to cells of a grid. Its work is linear in stages, options and cells. HiGHS solves the same problem
as the integer programme of `compose`, for stages in any order. For GPT-2 small with 12 and with 48 blocks HiGHS took
0.02 to 1.2 s, this 0.01 to 0.13 s.

Compare the dynamic programmes for chains of Beaumont et al. 2019 (rotor), which choose where to recompute from; here
each stage is recomputed once. Read after `stage_memory`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jaxckpt.solve.optimal.options import Option
from jaxckpt.solve.optimal.stage_memory import StageMemory

_CELLS = 2**14
"""Cells of the grid. Rounding is wrong by half a cell a stage at most: with 192 stages by 0.6% of the sum, which is
about the gap that `compose` allows HiGHS."""
_NONE = np.iinfo(np.int64).max // 4
"""Saved bytes where no combination has these seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainedStage:
    """A stage of several options.

    Attributes:
      saved_bytes: For each option the bytes that it holds in all later stages of the chain.
      own_bytes: For each option the peak of live bytes while the stage is active, without those of the stages before.
      seconds: For each option its seconds beyond those of the fastest.
      following_bytes: The peak of live bytes in the stages of one option that follow, without the saved bytes of this
        stage and of those before.
    """

    saved_bytes: NDArray[np.int64]
    own_bytes: NDArray[np.int64]
    seconds: NDArray[np.float64]
    following_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StageChain:
    """Stages whose saved values are held by all later ones until their own backward.

    Attributes:
      stages: For each stage of several options its number, and its bytes and seconds.
      count: Number of all stages.
      least_bytes: The peak that no choice of options changes.
    """

    stages: dict[int, ChainedStage]
    count: int
    least_bytes: int

    def fastest(self, budget_bytes: int) -> tuple[int, ...] | None:
        """For each stage the index of its option in the fastest combination within a budget; None if none meets it."""
        if self.least_bytes > budget_bytes:
            return None
        budget_bytes = min(budget_bytes, _NONE)  # differences to it are no more than 64 bits
        most_s = float(sum(stage.seconds.max() for stage in self.stages.values()))
        coarse = self._on_grid(most_s, budget_bytes)
        if coarse is None or not self._seconds(coarse):
            return coarse
        fine = self._on_grid(self._seconds(coarse), budget_bytes) or coarse
        return min(coarse, fine, key=self._seconds)

    def least(self) -> tuple[int, ...]:
        """The fastest combination of least memory."""
        stages = self.stages.values()
        below = self.least_bytes - 1
        peaks = (max(stage.following_bytes, int(stage.own_bytes.max())) for stage in stages)
        most_bytes = max([self.least_bytes, *peaks])
        most_bytes += sum(max(0, int(stage.saved_bytes.max())) for stage in stages)
        while most_bytes - below > 1:
            middle = (below + most_bytes) // 2
            if self._fits(middle):
                most_bytes = middle
            else:
                below = middle
        found = self.fastest(most_bytes)
        assert found is not None, "the least budget that some combination meets"
        return found

    def _fits(self, budget_bytes: int) -> bool:
        """True if some combination meets a budget: that which saves as little as it can in each stage in turn."""
        held = 0
        for stage in self.stages.values():
            fitting = stage.saved_bytes[held + stage.own_bytes <= budget_bytes]
            if not len(fitting):
                return False
            held += int(fitting.min())
            if held + stage.following_bytes > budget_bytes:
                return False
        return self.least_bytes <= budget_bytes

    def _on_grid(self, most_s: float, budget_bytes: int) -> tuple[int, ...] | None:
        """The fastest combination of at most so many seconds, rounded to cells; None if there is none."""
        cell_s = most_s / _CELLS or 1.0
        least = np.full(_CELLS + len(self.stages) + 1, _NONE)
        least[:1] = 0
        options_taken = []
        for stage in self.stages.values():
            least, taken = _extended(least, stage, cell_s, budget_bytes)
            options_taken.append(taken)
        reached = np.flatnonzero(least < _NONE)
        if not len(reached):
            return None
        at = int(reached[0])
        chosen = [0] * self.count
        for (number, stage), taken in zip(reversed(self.stages.items()), reversed(options_taken), strict=True):
            chosen[number] = int(taken[at])
            at -= round(stage.seconds[chosen[number]] / cell_s)
        return tuple(chosen)

    def _seconds(self, chosen: Sequence[int]) -> float:
        return float(sum(stage.seconds[chosen[number]] for number, stage in self.stages.items()))


def _extended(
    least: NDArray[np.int64], stage: ChainedStage, cell_s: float, budget_bytes: int
) -> tuple[NDArray[np.int64], NDArray[np.int16]]:
    """The least saved bytes for each sum of seconds with one more stage, and the option of that stage."""
    found, taken = np.full_like(least, _NONE), np.zeros(len(least), dtype=np.int16)
    for k, (saved_bytes, own_bytes, seconds) in enumerate(
        zip(stage.saved_bytes, stage.own_bytes, stage.seconds, strict=True)
    ):
        shift = round(seconds / cell_s)
        before = least[: max(0, len(least) - shift)]
        held = np.where(before <= budget_bytes - own_bytes, before + saved_bytes, _NONE)
        is_less = held < found[shift:]
        found[shift:][is_less] = held[is_less]
        taken[shift:][is_less] = k
    found[found > budget_bytes - stage.following_bytes] = _NONE
    return found, taken


def chain_of(options: Sequence[Sequence[Option]], memory: StageMemory) -> StageChain | None:
    """The chain of some stages; None if a stage is active while one before it is not held, or a later one is."""
    several = [number for number, own in enumerate(options) if len(own) > 1]
    own_bytes = {number: np.full(len(options[number]), -_NONE) for number in several}
    following_bytes = dict.fromkeys(several, -_NONE)
    least_bytes = 0
    for interval in memory.intervals:
        fixed_bytes = sum(options[t][0].saved_bytes for t in interval.holding if len(options[t]) == 1)
        held = sum(1 for t in interval.holding if len(options[t]) > 1)
        if set(several[:held]) - set(interval.holding):
            return None
        active_bytes = np.array(interval.own_bytes) + fixed_bytes
        if interval.stage in own_bytes:
            if several.index(interval.stage) != held:
                return None
            np.maximum(own_bytes[interval.stage], active_bytes, out=own_bytes[interval.stage])
        elif held:
            following_bytes[several[held - 1]] = max(following_bytes[several[held - 1]], int(active_bytes[0]))
        else:
            least_bytes = max(least_bytes, int(active_bytes[0]))
    stages = {
        number: ChainedStage(
            saved_bytes=np.array([option.saved_bytes for option in options[number]]),
            own_bytes=own_bytes[number],
            seconds=np.array(memory.stage_s[number]) - min(memory.stage_s[number]),
            following_bytes=following_bytes[number],
        )
        for number in several
    }
    return StageChain(stages=stages, count=len(options), least_bytes=least_bytes)
