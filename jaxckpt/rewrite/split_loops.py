"""Loop splitting: a traced step whose loops are cut into parts, each a loop of its own over the same arrays.

Index-set splitting. Loops that share values of iterations (`loops_split_together`) are split at the same iterations:

    for i in range(8): f(i)    ->    for i in range(3): f(i)
                                     for i in range(3, 8): f(i)

Each part has a copy of the body under new variables. The last carry of a part is the first carry of the next, and the
residual stacks of all parts are one array. Results do not change by a bit.

Complexity: linear in equations, times the parts of their loop.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import jax.extend.core as jex
import jax.numpy as jnp

from jaxckpt.ir import LoopSplit, Phase
from jaxckpt.ir.regions import CARRY, END, STACK
from jaxckpt.program.flat_program import Equation, FlatProgram, OpenLoop, renamed
from jaxckpt.program.open_scan import STACK_WRITERS, Visibility, is_loop_boundary, with_loop_ids
from jaxckpt.rewrite.loop_transforms import requested_loops, with_equations
from jaxckpt.trace.step import Traced


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SplitStep:
    """A step whose loops are split, and the step as it was traced; the same where nothing is split.

    Each unsplit value and op has its ids: one, or one for each part, as slices of an array are counted.
    """

    unsplit: Traced
    traced: Traced
    values: tuple[tuple[int, ...], ...] = field(repr=False)
    ops: tuple[tuple[int, ...], ...] = field(repr=False)


def loops_split_together(traced: Traced) -> tuple[tuple[int, ...], ...]:
    """The loops of a step that can be split, by those that have to be split together; in order of their ids.

    1. A loop that shares no values of iterations, or has a gradient in its body, has no residual stack to split.
    2. Loops in the body of a `shard_map`, and those with open branches in their own, cannot be split.
    3. Nor can loops that stack keys, since the parts fill an array that begins with zeros.
    """
    graph, program = traced.graph, traced.program
    groups = _Groups(program)
    found: dict[int, list[int]] = {}
    for loop in range(len(program.loops)):
        found.setdefault(groups.of(loop), []).append(loop)
    unfit = set(_unsplittable(program))
    return tuple(
        tuple(loops)
        for loops in found.values()
        if len(loops) > 1
        and not graph.loops_after_forward.issuperset(loops)
        and graph.loops[loops[0]].length > 1
        and unfit.isdisjoint(loops)
    )


def _unsplittable(program: FlatProgram) -> Iterator[int]:
    """Loops that cannot be split by themselves."""
    visibility = Visibility(program.loops)
    for loop, opened in enumerate(program.loops):
        if opened.cond_branch is not None:
            yield from visibility.path(loop)
        if opened.manual is not None:
            yield loop
    for eqn in (equation.eqn for equation in program.equations):
        if eqn.primitive.name == STACK and not jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.generic):
            yield eqn.params["loop"]


def with_split_loops(traced: Traced, loop_splits: Sequence[LoopSplit]) -> SplitStep:
    """Splits loops of a step as it was traced; there is at most one request for all loops that are split together."""
    if not loop_splits:
        values, ops = (tuple((i,) for i in range(len(each))) for each in (traced.graph.values, traced.graph.ops))
        return SplitStep(unsplit=traced, traced=traced, values=values, ops=ops)

    def refusal(request: LoopSplit) -> tuple[str, str, str]:
        return (
            f"with_split_loops({traced.name}): the loop cannot be split like that.",
            f"loop {request.loop} in parts of {' + '.join(map(str, request.lengths))} iterations",
            "parts that make all iterations of a loop that can be split, each once",
        )

    groups = loops_split_together(traced)
    return _Splitter(traced, requested_loops(traced, loop_splits, groups, fits=_fits, refusal=refusal)).split()


def _fits(request: LoopSplit, length: int) -> bool:
    return sum(request.lengths) == length and min(request.lengths) >= 1


class _Groups:
    """Loops that have to be split together (disjoint sets): one reads a value of the other's iteration."""

    def __init__(self, program: FlatProgram):
        self._other = list(range(len(program.loops)))
        visibility = Visibility(program.loops)
        home: dict[jex.Var, tuple[int, ...]] = {}
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


Names = dict[jex.Var, jex.Var]
"""For variables of a body those of a copy."""


@dataclass(slots=True)
class _SplitLoop:
    """A split loop: the order in which its parts run, and for each part the variables that stand for those of the body.

    `end` is the position of its END equation; `handed` is the carry that the part before has handed on.
    """

    order: tuple[int, ...]
    names: tuple[Names, ...]
    end: int | None = None
    handed: Sequence[jex.Var] = ()


class _Splitter:
    def __init__(self, traced: Traced, loop_splits: Mapping[int, LoopSplit]):
        self._traced = traced
        self._program = traced.program
        self._visibility = Visibility(traced.program.loops)
        self._lengths = {loop: each.lengths for loop, each in loop_splits.items()}
        self._ids: dict[tuple[int, int | None], int] = {}
        """For a loop, and the index of a part of the loop that is split around it, its new id."""
        self._loops: list[OpenLoop] = []
        for loop in range(len(self._program.loops)):
            self._open(loop)
        self._split_loops = dict(self._found_split_loops())
        self._written: list[tuple[Equation, Phase]] = []
        self._ops: list[dict[int, int]] = [{} for _ in self._program.equations]
        """For each equation its positions among those written, by part."""

    def _split_around(self, loop: int | None) -> int | None:
        """The loop that is split, itself or around."""
        return next((around for around in self._visibility.path(loop) if around in self._lengths), None)

    def _open(self, loop: int) -> None:
        """Gives a loop new ids, one for each part of the loop that is split around it."""
        opened, around = self._program.loops[loop], self._split_around(loop)
        lengths = () if around is None else self._lengths[around]
        for index in range(len(lengths)) if lengths else (None,):
            self._ids[loop, index] = len(self._loops)
            part = replace(opened, parent=self._new_id(opened.parent, index))
            if index is not None and loop == around:
                params = dict(opened.eqn.params, length=lengths[index])
                part = replace(part, eqn=opened.eqn.replace(params=params), offset=sum(lengths[:index]))
            self._loops.append(part)

    def _new_id(self, loop: int | None, index: int | None) -> int | None:
        if loop is None:
            return None
        return self._ids[(loop, index) if (loop, index) in self._ids else (loop, None)]

    def _found_split_loops(self) -> Iterator[tuple[int, _SplitLoop]]:
        """Loops that are split together share the variables of a part."""
        groups = _Groups(self._program)
        names: dict[int, tuple[Names, ...]] = {}
        ends = {e.eqn.params["loop"]: i for i, e in enumerate(self._program.equations) if e.eqn.primitive.name == END}
        for loop, lengths in self._lengths.items():
            indices = range(len(lengths))
            known = names.setdefault(groups.of(loop), tuple({} for _ in indices))
            order = tuple(reversed(indices) if self._program.loops[loop].reverse else indices)
            yield loop, _SplitLoop(order, known, ends.get(loop))

    def split(self) -> SplitStep:
        body: list[int] = []
        around: int | None = None
        for position, equation in enumerate(self._program.equations):
            split = self._split_around(equation.loop)
            if split != around:
                self._write_parts(around, body)
                around, body = split, []
            if split is None:
                self._write_outside(position)
            else:
                body.append(position)
        self._write_parts(around, body)
        return self._split_step()

    def _write(self, position: int, index: int, equation: Equation) -> None:
        self._ops[position][index] = len(self._written)
        self._written.append((equation, self._traced.graph.ops[position].phase))

    def _write_parts(self, loop: int | None, positions: Sequence[int]) -> None:
        """The body of a loop once for each part, and the carry that each hands on to the next."""
        if loop is None:
            return
        split = self._split_loops[loop]
        for index in split.order:
            for position in positions:
                self._write(position, index, self._in_part(self._program.equations[position], loop, index))
            if split.end is not None and index != split.order[-1]:
                ended = self._end(self._program.equations[split.end], split, index)
                split.handed = [jex.Var(v.aval) for v in ended.eqn.outvars]
                ended = replace(ended, eqn=ended.eqn.replace(outvars=split.handed))
                self._written.append((ended, self._traced.graph.ops[split.end].phase))

    def _in_part(self, equation: Equation, loop: int, index: int) -> Equation:
        eqn, split = equation.eqn, self._split_loops[loop]
        names = split.names[index]
        reads = [renamed(atom, names) for atom in eqn.invars]
        params = eqn.params
        if is_loop_boundary(eqn):
            params = with_loop_ids(params, lambda loop: self._new_id(loop, index))
            continues = eqn.primitive.name == CARRY and eqn.params["loop"] == loop and index != split.order[0]
            reads = [split.handed[params["index"]]] if continues else reads
        names.update((v, jex.Var(v.aval)) for v in eqn.outvars)
        copy = eqn.replace(invars=reads, outvars=[names[v] for v in eqn.outvars], params=params)
        return replace(equation, eqn=copy, loop=self._new_id(equation.loop, index))

    def _write_outside(self, position: int) -> None:
        equation = self._program.equations[position]
        eqn = equation.eqn
        if is_loop_boundary(eqn):
            split = self._split_loops.get(eqn.params["loop"])
            if split is not None:
                is_end = eqn.primitive.name == END
                joined = self._end(equation, split, split.order[-1]) if is_end else self._stack(equation, split)
                self._write(position, 0, joined)
                return
            eqn = eqn.replace(params=with_loop_ids(eqn.params, lambda loop: self._new_id(loop, None)))
        self._write(position, 0, replace(equation, eqn=eqn, loop=self._new_id(equation.loop, None)))

    def _end(self, equation: Equation, split: _SplitLoop, index: int) -> Equation:
        eqn = equation.eqn
        reads = [renamed(atom, split.names[index]) for atom in eqn.invars]
        params = dict(eqn.params, loop=self._ids[eqn.params["loop"], index])
        return replace(equation, eqn=eqn.replace(invars=reads, params=params), loop=self._new_id(equation.loop, None))

    def _stack(self, equation: Equation, split: _SplitLoop) -> Equation:
        eqn = equation.eqn
        (value,) = eqn.invars
        reads = [renamed(value, split.names[index]) for index in split.order]
        loops = tuple(self._ids[eqn.params["loop"], index] for index in split.order)
        params = {**eqn.params, "loop": loops[-1], STACK_WRITERS: loops}
        return replace(equation, eqn=eqn.replace(invars=reads, params=params), loop=self._new_id(equation.loop, None))

    def _split_step(self) -> SplitStep:
        copies: dict[jex.Var, list[jex.Var]] = {}
        for names in {id(names): names for split in self._split_loops.values() for names in split.names}.values():
            for variable, copy in names.items():
                copies.setdefault(variable, []).append(copy)
        traced, values = with_equations(self._traced, self._written, self._loops, copies)
        return SplitStep(
            unsplit=self._traced,
            traced=traced,
            values=values,
            ops=tuple(tuple(at for _, at in sorted(positions.items())) for positions in self._ops),
        )
