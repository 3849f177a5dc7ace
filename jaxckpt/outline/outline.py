"""Outlining: open loops become scans and whiles, open branches conds, and open bodies of `shard_map` equations of that.

Neighbouring equations of one loop are the body of one scan or while. An analysis in eight passes says what each loop
reads and gives (`interfaces`, `stack_indexing`); then loops and conds are written level by level from what the passes
found. Variables keep their names on both sides of a body's border. Complexity: linear in equations times the depth of
loops.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby

import jax.extend.core as jex

from jaxckpt import _compat
from jaxckpt.ir.regions import COND_END
from jaxckpt.outline.interfaces import Cond, Interfaces, LoopInterface, LoopTree, zeros_like_aval
from jaxckpt.outline.shard_map import is_within, regions
from jaxckpt.outline.stack_indexing import (
    add_counters,
    carry_filled_arrays,
    delay_stacks,
    hold_row_major,
    number_iterations,
)
from jaxckpt.program.flat_program import (
    Atom,
    Equation,
    FlatProgram,
    ManualMesh,
    OpenLoop,
    body_jaxpr,
    is_while,
    with_name_stack,
)
from jaxckpt.program.open_loops import is_loop_boundary


def closed_jaxpr(program: FlatProgram, equations: Sequence[Equation], outvars: Sequence[Atom]) -> jex.ClosedJaxpr:
    """A closed jaxpr of a program's arguments and constants; neighbours in a body become one equation of that body."""
    jaxpr = jex.Jaxpr(
        constvars=[variable for variable, _ in program.constants],
        invars=list(program.invars),
        outvars=list(outvars),
        eqns=list(_outlined(equations, program.loops, program.manuals)),
        effects=program.effects,
        debug_info=program.debug_info,
    )
    return jex.ClosedJaxpr(jaxpr, [array for _, array in program.constants])


def _outlined(
    equations: Sequence[Equation], loops: Sequence[OpenLoop], manuals: Sequence[ManualMesh]
) -> Iterator[jex.JaxprEqn]:
    """JAX's equations of the outermost level; those in bodies of `shard_map` are outlined first."""
    if any(equation.manual is not None for equation in equations):
        inside = _analysed([e for e in equations if is_within(e)], LoopTree(loops, in_shard_map=True))
        equations = regions(equations, loops, manuals, lambda within: list(inside.level(within, 0)))
    if not any(is_loop_boundary(equation.eqn) or equation.loop is not None for equation in equations):
        return iter([equation.eqn for equation in equations])
    return _analysed(equations, LoopTree(loops)).level(equations, 0)


def _analysed(equations: Sequence[Equation], tree: LoopTree) -> "_Outliner":
    """The interfaces of all loops, found in eight passes.

    1. Own stacks before interfaces: a value that the step stacks itself is read from that stack.
    2. Interfaces, with what runs an iteration ahead: later passes add to carries that are complete here.
    3. Parts of split loops get row-major carries before filled arrays join these, whose layout is left to XLA there.
    4. Arrays that several loops fill join the carries.
    5. Tiles get row-major carries after that, filled arrays included; no benchmark compared this with the order of 3.
    6. Stacks that begin late join the carries of their loops.
    7. Numbers and counters: which loops need them depends on slices and updates of all passes before.
    8. Carries of equations that run an iteration ahead are the last of their loops.
    """
    found = Interfaces(equations, tree)
    parts = [loop for loop, opened in enumerate(tree.loops) if opened.offset is not None]
    tiles = {each for loop, opened in enumerate(tree.loops) if opened.is_inner_tile for each in tree.iterating(loop)}
    hold_row_major(found.loops, tree, parts)
    carry_filled_arrays(found.loops, tree, found.filled)
    hold_row_major(found.loops, tree, sorted(tiles))
    delay_stacks(found.loops, tree, equations)
    for interface, opened in zip(found.loops, tree.loops, strict=True):
        if opened.reads_iteration_number:
            number_iterations(interface, opened, equations)
    add_counters(found.loops, tree)
    for interface in found.loops:
        for carry, before in interface.pipelined:
            interface.carries.append(carry)
            interface.before += before
    return _Outliner(tree, found)


@dataclass(frozen=True, slots=True)
class _Outliner:
    """Writes the equations of each level from the interfaces of loops."""

    tree: LoopTree
    interfaces: Interfaces

    def level(self, equations: Sequence[Equation], depth: int) -> Iterator[jex.JaxprEqn]:
        """The equations of one level: those of deeper levels are in loops and conds."""

        def deeper(equation: Equation) -> int | None:
            path = self.tree.path(equation.loop)
            return path[depth] if len(path) > depth else None

        groups = [(loop, list(group)) for loop, group in groupby(equations, deeper)]
        branches = {loop: group for loop, group in groups if loop in self.interfaces.conds}
        last = {self.interfaces.conds[loop].branches: loop for loop in branches}
        for loop, group in groups:
            if loop is None:
                yield from self._same_level(group, last, depth)
                continue
            parent, cond = self.tree.parent(loop), self.interfaces.conds.get(loop)
            yield from (self._named_within(eqn, parent) for eqn in self.interfaces.loops[loop].before)
            if cond is None:
                yield self._loop(loop, group, depth)
            elif last[cond.branches] == loop:
                yield self._cond(cond, branches, depth)

    def _same_level(
        self, equations: Sequence[Equation], written: dict[tuple[int, ...], int], depth: int
    ) -> Iterator[jex.JaxprEqn]:
        """Equations of the level itself, and conds whose branches have no equations, each where it is first read.

        `written` are the other conds, and those so far.
        """
        for equation in equations:
            eqn = equation.eqn
            if not is_loop_boundary(eqn):
                within = self.interfaces.shifted[id(eqn)] if equation.is_pipelined else eqn
                yield self._named_within(within, self.tree.path(equation.loop)[depth - 1] if depth else None)
            elif eqn.primitive.name == COND_END:
                cond = self.interfaces.conds[eqn.params["loop"]]
                if cond.branches not in written:
                    written[cond.branches] = cond.branches[0]
                    yield self._cond(cond, {}, depth)

    def _named_within(self, eqn: jex.JaxprEqn, loop: int | None) -> jex.JaxprEqn:
        """An equation in a body, whose name stacks begin behind that of the loop."""
        if loop is None:
            return eqn
        around, stack = self.tree.loops[loop].eqn.source_info.name_stack, eqn.source_info.name_stack
        common = _compat.common_names(around, stack)
        return with_name_stack(eqn, stack[common:]) if common else eqn

    def _loop(self, loop: int, equations: list[Equation], depth: int) -> jex.JaxprEqn:
        interface, template = self.interfaces.loops[loop], self.tree.loops[loop].eqn
        body = [e for e in equations if not is_loop_boundary(e.eqn) or e.loop != loop or e.eqn.params["loop"] != loop]
        eqns = [
            *(self._named_within(eqn, loop) for eqn in interface.start),
            *self.level(body, depth + 1),
            *(self._named_within(eqn, loop) for eqn in interface.after),
        ]
        write = _while_eqn if is_while(template) else _scan_eqn
        return self._named_within(write(interface, eqns, template), self.tree.parent(loop))

    def _cond(self, cond: Cond, branches: Mapping[int, Sequence[Equation]], depth: int) -> jex.JaxprEqn:
        """The cond of some branches, whose equations may be none."""
        bodies = [
            (self.interfaces.loops[loop], list(self.level(branches.get(loop, ()), depth + 1))) for loop in cond.branches
        ]
        template = self.tree.loops[cond.branches[0]].eqn
        stack = template.source_info.name_stack
        named = with_name_stack(_cond_eqn(cond, bodies, template), stack[: len(stack) - 1])
        return self._named_within(named, self.tree.parent(cond.branches[0]))


def _scan_eqn(interface: LoopInterface, eqns: Sequence[jex.JaxprEqn], template: jex.JaxprEqn) -> jex.JaxprEqn:
    """The scan equation of a loop."""
    constants, carries, slices, stacks = interface.constants, interface.carries, interface.slices, interface.stacks
    jaxpr = body_jaxpr(
        invars=[*constants, *(carry.current for carry in carries), *slices],
        outvars=[*(carry.following for carry in carries), *(value for value, _ in stacks)],
        eqns=eqns,
        template=template.params["jaxpr"],
    )
    sizes = map(len, (constants, carries, slices, stacks))
    return template.replace(
        invars=[*constants, *(carry.init for carry in carries), *slices.values()],
        outvars=[*(carry.final for carry in carries), *(stack for _, stack in stacks)],
        effects=jaxpr.effects,
        params=_compat.scan_params(template.params, jex.ClosedJaxpr(jaxpr, ()), *sizes),
    )


def _while_eqn(interface: LoopInterface, eqns: Sequence[jex.JaxprEqn], template: jex.JaxprEqn) -> jex.JaxprEqn:
    """The while equation of a loop; its condition ignores what plans have added to the carry."""
    assert not [*interface.slices, *interface.stacks], "no other loop has the iterations of a while"
    constants, carries, condition = interface.constants, interface.carries, template.params["cond_jaxpr"]
    body = body_jaxpr(
        invars=[*constants, *(carry.current for carry in carries)],
        outvars=[carry.following for carry in carries],
        eqns=eqns,
        template=template.params["body_jaxpr"],
    )
    tested = condition.jaxpr.invars
    invars = [*tested, *(jex.Var(carry.current.aval) for carry in carries[len(tested) :])]
    params = {
        "cond_jaxpr": jex.ClosedJaxpr(body_jaxpr(invars, condition.jaxpr.outvars, condition.jaxpr.eqns, condition), ()),
        "cond_nconsts": 0,
        "body_jaxpr": jex.ClosedJaxpr(body, ()),
        "body_nconsts": len(constants),
    }
    return template.replace(
        invars=[*constants, *(carry.init for carry in carries)],
        outvars=[carry.final for carry in carries],
        effects=body.effects,
        params={**template.params, **params},
    )


def _cond_eqn(
    cond: Cond, bodies: Sequence[tuple[LoopInterface, Sequence[jex.JaxprEqn]]], template: jex.JaxprEqn
) -> jex.JaxprEqn:
    """The cond equation of some branches, each with its equations, in order; `template` is the cond that they were.

    All branches take the same operands and give the same results. A branch has a variable of its own for an operand
    that is another branch's slot, and gives zeros for slots that only other branches fill.
    """
    interfaces = [interface for interface, _ in bodies]
    operands = list(dict.fromkeys(chain.from_iterable(map(_operands, interfaces))))
    slots = list(dict.fromkeys(slot for interface in interfaces for _, slot in interface.stacks))
    branches = []
    for position, (interface, eqns) in enumerate(bodies):
        own = _operands(interface)
        invars = [own.get(outer) or jex.Var(outer.aval) for outer in operands]
        results = [values[position] for _, values in cond.results]
        filling, filled = _slots(interface, slots, template)
        old = template.params["branches"][position]
        branches.append(jex.ClosedJaxpr(body_jaxpr(invars, [*results, *filled], [*eqns, *filling], old), ()))
    return template.replace(
        invars=[cond.index, *operands],
        outvars=[*(result for result, _ in cond.results), *slots],
        params=dict(template.params, branches=tuple(branches)),
        effects=frozenset().union(*(branch.effects for branch in branches)),
    )


def _operands(interface: LoopInterface) -> dict[Atom, jex.Var]:
    """The atoms that a branch reads from outside, each with its own variable."""
    return {**{v: v for v in interface.constants}, **{outer: own for own, outer in interface.slices.items()}}


def _slots(
    interface: LoopInterface, slots: Sequence[jex.Var], like: jex.JaxprEqn
) -> tuple[list[jex.JaxprEqn], list[Atom]]:
    """For each slot a branch's own value or zeros, and the equations of the zeros."""
    own = {slot: value for value, slot in interface.stacks}
    eqns: list[jex.JaxprEqn] = []
    values: list[Atom] = []
    for slot in slots:
        zeros_eqns, value = ([], own[slot]) if slot in own else zeros_like_aval(slot.aval, like)
        eqns += zeros_eqns
        values.append(value)
    return eqns, values
