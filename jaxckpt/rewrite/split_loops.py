"""Loop splitting: a traced step whose loops are cut into parts, each a loop of its own over the same arrays.

Index-set splitting. Loops that share values of iterations (`loops_split_together`) are split at the same iterations:

    for i in range(8): f(i)    ->    for i in range(3): f(i)
                                     for i in range(3, 8): f(i)

Each part has a copy of the body under new variables. The last carry of a part is the first carry of the next, and the
residual stacks of all parts are one array. Results do not change by a bit.

Complexity: linear in equations, times the parts of their loop.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import jax.extend.core as jex
import jax.numpy as jnp

from jaxckpt.ir import LoopSplit
from jaxckpt.ir.regions import STACK
from jaxckpt.program.flat_program import FlatProgram
from jaxckpt.program.open_loops import Visibility
from jaxckpt.rewrite.loop_transforms import BodyCopy, LoopRewriter, requested_loops, with_equations
from jaxckpt.schedule.components import connected_components
from jaxckpt.trace.step import Traced


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SplitStep:
    """A step whose loops are split; the same step where nothing is.

    Each unsplit value and op has its ids: one, or one for each part, as slices of an array are counted.
    """

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
    found: dict[int, list[int]] = {}
    for loop, group in _groups(program).items():
        found.setdefault(group, []).append(loop)
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
        return SplitStep(traced=traced, values=values, ops=ops)
    return _Splitter(traced, requested_loops(traced, loop_splits, loops_split_together(traced))).split()


def _groups(program: FlatProgram) -> dict[int, int]:
    """For each loop the number of its group: of two in a group one reads values of the other's iteration."""
    visibility = Visibility(program.loops)
    home: dict[jex.Var, tuple[int, ...]] = {}
    pairs = [(loop, loop) for loop in range(len(program.loops))]
    for equation in program.equations:
        here = visibility.path(equation.loop)
        for variable in equation.variables():
            pairs.extend(zip(home.get(variable, ()), here, strict=False))
        home.update(dict.fromkeys(equation.eqn.outvars, here))
    return connected_components(pairs)[0]


class _Splitter(LoopRewriter):
    """Each part of a loop is a copy of it; loops that are split together share the variables of a part."""

    def __init__(self, traced: Traced, loop_splits: Mapping[int, LoopSplit]):
        super().__init__(traced, loop_splits)
        self._parts: dict[int, list[BodyCopy]] = {}
        groups, names = _groups(self.program), defaultdict[tuple[int, int], dict[jex.Var, jex.Var]](dict)
        for loop, each in loop_splits.items():
            parts = [BodyCopy(names=names[groups[loop], number], loops={}) for number in range(len(each.lengths))]
            self._parts[loop] = parts
            self.stacked[loop] = parts[::-1] if self.program.loops[loop].reverse else parts
        for loop, opened in enumerate(self.program.loops):
            around = self.chosen_around(loop)
            if around is None:
                self.ids[loop] = self.add_loop(opened, self.new_id(opened.parent))
            elif loop == around:
                self._add_parts(loop, loop_splits[loop].lengths)
            else:
                for part in self._parts[around]:
                    part.loops[loop] = self.add_loop(opened, part.loops[opened.parent])
        self._ops: list[dict[int, int]] = [{} for _ in self.program.equations]
        """For each equation its positions among those written, by part."""

    def _add_parts(self, loop: int, lengths: Sequence[int]) -> None:
        opened = self.program.loops[loop]
        for number, part in enumerate(self._parts[loop]):
            eqn = opened.eqn.replace(params=dict(opened.eqn.params, length=lengths[number]))
            of_part = replace(opened, eqn=eqn, offset=sum(lengths[:number]))
            part.loops[loop] = self.add_loop(of_part, self.new_id(opened.parent))

    def split(self) -> SplitStep:
        self.rewrite()
        copies: dict[jex.Var, list[jex.Var]] = {}
        for names in {id(part.names): part.names for parts in self._parts.values() for part in parts}.values():
            for variable, copy in names.items():
                copies.setdefault(variable, []).append(copy)
        traced, values = with_equations(self.traced, self.written, self.loops, copies)
        ops = tuple(tuple(at for _, at in sorted(positions.items())) for positions in self._ops)
        return SplitStep(traced=traced, values=values, ops=ops)

    def write_copies(self, loop: int) -> None:
        """Writes the body of a loop once for each part, and the carry that each hands on to the next."""
        around, carried = self.new_id(self.program.loops[loop].parent), dict[int, jex.Var]()
        for part in self.stacked[loop]:
            number, begin = self._parts[loop].index(part), len(self.written)
            self.write_body(loop, part, carried)
            for at, position in enumerate(self.bodies[loop], begin):
                self._ops[position][number] = at
            if part is not self.stacked[loop][-1]:
                carried = dict(enumerate(self.write_end(loop, part, around, {"loop": part.loops[loop]})))
            elif loop in self.ends:
                carry = [part.renamed(atom) for atom in self.program.equations[self.ends[loop]].eqn.invars]
                self.last_carries[loop] = carry, {"loop": part.loops[loop]}

    def write_outside(self, position: int) -> None:
        """Writes an equation outside of all loops that are split."""
        self._ops[position][0] = len(self.written)
        super().write_outside(position)
