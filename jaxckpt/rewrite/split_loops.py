"""A traced step with loops split into stretches: each is a loop of its own, over the same whole arrays.

Index-set splitting. Loops that share values of iterations (`loops_split_together`) are split at the same iterations:
each part is a loop of its own, with a copy of the body under new variables, in the order in which iterations run. The
last carry of a part is the first carry of the next, and the residual stacks of all parts are one array. Results do not
change by a bit.

Read after `rebuilt`. Complexity: linear in equations, times the stretches of their loop.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax.extend.core as jex
import jax.numpy as jnp

from jaxckpt.ir import LoopSplit, Phase
from jaxckpt.ir.loop import CARRY, END, STACK
from jaxckpt.program.flat_program import Atom, Equation, FlatProgram, OpenLoop
from jaxckpt.program.open_scan import STACK_WRITERS, Visibility, is_loop_boundary, loop_paths, with_loop_ids
from jaxckpt.rewrite.rebuild import rebuilt
from jaxckpt.rewrite.requested_loops import requested_loops
from jaxckpt.trace.step import Traced


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SplitStep:
    """A step whose loops are split.

    Attributes:
      whole: The step as it was traced.
      traced: The split step; where nothing is split, the same.
      values: For each value of the whole step its ids in the split one: one, or one for each stretch, as the slices of
        an array are counted.
      ops: The same for ops.
    """

    unsplit: Traced
    traced: Traced
    values: tuple[tuple[int, ...], ...] = field(repr=False)
    ops: tuple[tuple[int, ...], ...] = field(repr=False)


def loops_split_together(traced: Traced) -> tuple[tuple[int, ...], ...]:
    """The loops of a step that can be split, by those that have to be split together; in order of their ids.

    A loop on its own, or with a gradient in its body, leaves nothing from turn to turn that a split would change. Those
    in the body of a `shard_map`, and with open branches in their own, stay whole.
    """
    program = traced.program
    groups = _Groups(program)
    late = traced.graph.loops_after_forward
    found: dict[int, list[int]] = {}
    for loop in range(len(program.loops)):
        found.setdefault(groups.of(loop), []).append(loop)
    unfit = {loop for equation in program.equations for loop in _stacking_no_numbers(equation)}
    unfit |= {
        around
        for path in loop_paths(program.loops)
        if program.loops[path[-1]].cond_branch is not None
        for around in path
    }
    return tuple(
        tuple(loops)
        for loops in found.values()
        if len(loops) > 1
        and any(loop not in late for loop in loops)
        and traced.graph.loops[loops[0]].length > 1
        and unfit.isdisjoint(loops)
        and all(program.loops[loop].manual is None for loop in loops)
    )


def with_split_loops(traced: Traced, loop_splits: Sequence[LoopSplit]) -> SplitStep:
    """Splits loops of a traced step.

    Args:
      traced: The step, as it was traced.
      loop_splits: At most one for all loops that are split together.

    Returns:
      The split step, and what became of values and ops.

    Raises:
      PlanMismatchError: There is no such loop, it does not have that many turns, or it cannot be split.
    """
    if not loop_splits:
        values, ops = len(traced.graph.values), len(traced.graph.ops)
        alone = tuple((i,) for i in range(max(values, ops)))
        return SplitStep(unsplit=traced, traced=traced, values=alone[:values], ops=alone[:ops])

    def refused(asked: LoopSplit) -> tuple[str, str, str]:
        return (
            f"with_split_loops({traced.name}): the loop cannot be split like that.",
            f"loop {asked.loop} in stretches of {' + '.join(map(str, asked.lengths))} turns",
            "stretches that make all turns of a loop that can be split, each once",
        )

    return _Splitter(
        traced, requested_loops(traced, loop_splits, loops_split_together(traced), fits=_fits, refused=refused)
    ).split()


def _fits(asked: LoopSplit, length: int) -> bool:
    return sum(asked.lengths) == length and min(asked.lengths) >= 1


def _stacking_no_numbers(equation: Equation) -> Iterator[int]:
    """The loop of an equation that stacks what zeros cannot stand for: keys, which are no numbers."""
    eqn = equation.eqn
    if eqn.primitive.name == STACK and not jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.generic):
        yield eqn.params["loop"]


class _Groups:
    """Which loops have to be split together: those of which one reads a value of the other's turn."""

    def __init__(self, program: FlatProgram):
        self._other = list(range(len(program.loops)))
        visibility = Visibility(program.loops)
        home: dict[Any, tuple[int, ...]] = {}
        for equation in program.equations:
            here = visibility.path(equation.loop)
            for variable in equation.variables():
                for one, other in zip(home.get(variable, ()), here, strict=False):
                    self._join(one, other)
            home.update(dict.fromkeys(equation.eqn.outvars, here))

    def of(self, loop: int) -> int:
        """The first loop of a group."""
        while self._other[loop] != loop:
            loop = self._other[loop]
        return loop

    def _join(self, one: int, other: int) -> None:
        first, second = sorted((self.of(one), self.of(other)))
        self._other[second] = first


@dataclass(slots=True)
class _Turning:
    """A loop that is split.

    Attributes:
      loop_splits: Indices of its stretches, in the order in which they run.
      names: For each stretch, by index, the variables that stand for those of the body.
      end: The position of the equation of what the last turn hands on, if there is one.
      handed: What the stretch before has handed on.
    """

    loop_splits: tuple[int, ...]
    names: tuple[dict[Any, Any], ...]
    end: int | None = None
    handed: Sequence[Atom] = ()


class _Splitter:
    def __init__(self, traced: Traced, loop_splits: Mapping[int, LoopSplit]):
        self._traced = traced
        self._program = traced.program
        self._visibility = Visibility(traced.program.loops)
        self._lengths = {loop: each.lengths for loop, each in loop_splits.items()}
        self._number: dict[tuple[int, int | None], int] = {}
        self._loops: list[OpenLoop] = []
        for loop in range(len(self._program.loops)):
            self._open(loop)
        self._turning = dict(self._turned())
        for position, equation in enumerate(self._program.equations):
            if equation.eqn.primitive.name == END and (loop := equation.eqn.params["loop"]) in self._turning:
                self._turning[loop].end = position
        self._made: list[tuple[Equation, Phase]] = []
        self._ops: list[dict[int, int]] = [{} for _ in self._program.equations]

    def _split_around(self, loop: int | None) -> int | None:
        """The loop that is split, itself or around."""
        return next((around for around in self._visibility.path(loop) if around in self._lengths), None)

    def _open(self, loop: int) -> None:
        """Numbers a loop anew, once for each stretch of the one that is split around it."""
        opened, around = self._program.loops[loop], self._split_around(loop)
        lengths = () if around is None else self._lengths[around]
        for index in range(len(lengths)) if lengths else (None,):
            self._number[loop, index] = len(self._loops)
            made = replace(opened, parent=self._renumbered(opened.parent, index))
            if index is not None and loop == around:
                offset = sum(lengths[:index])
                params = dict(opened.eqn.params, length=lengths[index])
                made = replace(made, eqn=opened.eqn.replace(params=params), offset=offset)
            self._loops.append(made)

    def _renumbered(self, loop: int | None, index: int | None) -> int | None:
        if loop is None:
            return None
        return self._number[(loop, index) if (loop, index) in self._number else (loop, None)]

    def _turned(self) -> Iterator[tuple[int, _Turning]]:
        """Loops that are split together share the variables of a stretch."""
        groups = _Groups(self._program)
        names: dict[int, tuple[dict[Any, Any], ...]] = {}
        for loop, lengths in self._lengths.items():
            indices = range(len(lengths))
            known = names.setdefault(groups.of(loop), tuple({} for _ in indices))
            reverse = self._program.loops[loop].eqn.params["reverse"]
            yield loop, _Turning(loop_splits=tuple(reversed(indices) if reverse else indices), names=known)

    def split(self) -> SplitStep:
        body: list[int] = []
        around: int | None = None
        for position, equation in enumerate(self._program.equations):
            split = self._split_around(equation.loop)
            if split != around:
                self._bodies(around, body)
                around, body = split, []
            if split is None:
                self._outside(position)
            else:
                body.append(position)
        self._bodies(around, body)
        return self._stretched()

    def _add(self, position: int, index: int, equation: Equation) -> None:
        self._ops[position][index] = len(self._made)
        self._made.append((equation, self._traced.graph.ops[position].phase))

    def _bodies(self, loop: int | None, positions: Sequence[int]) -> None:
        """The body of a loop once for each stretch, and what each hands on to the next."""
        if loop is None:
            return
        turning = self._turning[loop]
        for index in turning.loop_splits:
            for position in positions:
                self._add(position, index, self._of_stretch(self._program.equations[position], loop, index))
            if turning.end is not None and index != turning.loop_splits[-1]:
                ended = self._ended(self._program.equations[turning.end], turning, index)
                turning.handed = [jex.Var(v.aval) for v in ended.eqn.outvars]
                ended = replace(ended, eqn=ended.eqn.replace(outvars=turning.handed))
                self._made.append((ended, self._traced.graph.ops[turning.end].phase))

    def _of_stretch(self, equation: Equation, loop: int, index: int) -> Equation:
        """An equation of the body as it stands in a stretch."""
        eqn, turning = equation.eqn, self._turning[loop]
        names = turning.names[index]
        reads = [self._named(atom, names) for atom in eqn.invars]
        params = eqn.params
        if is_loop_boundary(eqn):
            params = with_loop_ids(params, lambda loop: self._renumbered(loop, index))
            begins = eqn.primitive.name == CARRY and eqn.params["loop"] == loop and index != turning.loop_splits[0]
            reads = [turning.handed[params["index"]]] if begins else reads
        names.update((v, jex.Var(v.aval)) for v in eqn.outvars)
        made = eqn.replace(invars=reads, outvars=[names[v] for v in eqn.outvars], params=params)
        return replace(equation, eqn=made, loop=self._renumbered(equation.loop, index))

    def _outside(self, position: int) -> None:
        """An equation outside of what is split."""
        equation = self._program.equations[position]
        eqn, around = equation.eqn, self._renumbered(equation.loop, None)
        if is_loop_boundary(eqn) and (turning := self._turning.get(eqn.params["loop"])) is not None:
            last = turning.loop_splits[-1]
            if eqn.primitive.name == END:
                self._add(position, 0, self._ended(equation, turning, last))
            else:
                self._add(position, 0, self._stacked(equation, turning))
            return
        if is_loop_boundary(eqn):
            eqn = eqn.replace(params=with_loop_ids(eqn.params, lambda loop: self._renumbered(loop, None)))
        self._add(position, 0, replace(equation, eqn=eqn, loop=around))

    def _ended(self, equation: Equation, turning: _Turning, index: int) -> Equation:
        """What the last turn of a stretch hands on."""
        eqn = equation.eqn
        reads = [self._named(atom, turning.names[index]) for atom in eqn.invars]
        params = dict(eqn.params, loop=self._number[eqn.params["loop"], index])
        return replace(
            equation, eqn=eqn.replace(invars=reads, params=params), loop=self._renumbered(equation.loop, None)
        )

    def _stacked(self, equation: Equation, turning: _Turning) -> Equation:
        """What the turns of all stretches stack."""
        eqn = equation.eqn
        (value,) = eqn.invars
        reads = [self._named(value, turning.names[index]) for index in turning.loop_splits]
        loops = tuple(self._number[eqn.params["loop"], index] for index in turning.loop_splits)
        params = {**eqn.params, "loop": loops[-1], STACK_WRITERS: loops}
        return replace(
            equation, eqn=eqn.replace(invars=reads, params=params), loop=self._renumbered(equation.loop, None)
        )

    def _named(self, atom: Atom, names: Mapping[Any, Any]) -> Atom:
        return names.get(atom, atom) if isinstance(atom, jex.Var) else atom

    def _stretched(self) -> SplitStep:
        by_stretch: dict[Any, list[Any]] = {}
        for names in {id(names): names for turning in self._turning.values() for names in turning.names}.values():
            for variable, copy in names.items():
                by_stretch.setdefault(variable, []).append(copy)
        traced, values = rebuilt(self._traced, self._made, self._loops, by_stretch)
        return SplitStep(
            unsplit=self._traced,
            traced=traced,
            values=values,
            ops=tuple(tuple(at for _, at in sorted(positions.items())) for positions in self._ops),
        )
