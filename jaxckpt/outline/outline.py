"""Open loops become scan equations again, and branches conds: neighbouring equations of one loop are its body.

What the body needs is found from what it reads. A value from further out is a constant of the scan, a slice an array
that it goes through, and what another loop made in the same turn is stacked there and gone through here. What it gives
is what `loop_end` and `loop_stack` read, and what other loops read of it. Variables keep their names on both sides of
a body's border.

An equation that runs a turn ahead (`Equation.is_pipelined`) makes a carry: of what it reads, where the body makes
that, so that a turn reads what the one before made, zeros in the first; else of what it gives, so that a turn gives it
to the next. Two such loops that turn opposite ways meet in the same places of a stack, but for what the last turn of
the one has made: the first turn of the other gets that itself.

Branches of a cond become a cond in the same way: `cond` says what comes of what they read, give and leave for others.

Stretches of one loop (`OpenLoop.offset`) go through whole arrays, and stack into one that each hands on to the next. So
do the groups of a nested one (`OpenLoop.is_inner_tile`), and in each its turns. Turns that are numbered
(`OpenLoop.reads_iteration_number`)
take their slices of whole arrays too.

Read after `loops`, `cond`, `whole` and `regions`. Complexity: linear in equations times the depth of loops.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from math import prod
from typing import Any

import jax.extend.core as jex
import jax.numpy as jnp

from jaxckpt import _compat
from jaxckpt.ir.branch import COND_END
from jaxckpt.ir.loop import CARRY, END, SLICE, STACK
from jaxckpt.outline.cond import BranchBody, Cond, cond_eqn, zeros_like_aval
from jaxckpt.outline.shard_map import is_within, regions
from jaxckpt.outline.stack_indexing import (
    IterationCounter,
    IterationNumbers,
    has_layout_choice,
    induction_variables,
    row_major,
)
from jaxckpt.program.flat_program import JAXPRS, Atom, Equation, FlatProgram, ManualMesh, OpenLoop
from jaxckpt.program.open_scan import BRANCHES, IS_PROBE, is_loop_boundary, loop_paths, stack_writers


def closed_jaxpr(program: FlatProgram, equations: Sequence[Equation], outvars: Sequence[Atom]) -> Any:
    """A closed jaxpr with a program's arguments and constants, and equations and results of its own.

    Args:
      program: Whose arguments, constants and loops they are.
      equations: In order; those of one loop are neighbours.
      outvars: What is returned.

    Returns:
      A closed jaxpr of the installed version, in which every loop is one scan equation, and what stands together of the
      body of a `shard_map` one equation of that.
    """
    jaxpr = jex.Jaxpr(
        constvars=[variable for variable, _ in program.constants],
        invars=list(program.invars),
        outvars=list(outvars),
        eqns=list(close(equations, program.loops, program.manuals)),
        effects=program.effects,
        debug_info=program.debug_info,
    )
    return JAXPRS[1](jaxpr, [array for _, array in program.constants])


def close(
    equations: Sequence[Equation], loops: Sequence[OpenLoop], manuals: Sequence[ManualMesh] = ()
) -> Iterator[Any]:
    """JAX's equations of the outermost level, loops as scans; those in the body of a `shard_map` are closed first."""
    if any(equation.manual is not None for equation in equations):
        closer = _Closer([e for e in equations if is_within(e)], loops, inside=True)
        equations = regions(equations, loops, manuals, lambda within: list(closer.level(within, 0)))
    if not any(is_loop_boundary(equation.eqn) or equation.loop is not None for equation in equations):
        return iter([equation.eqn for equation in equations])
    return _Closer(equations, loops).level(equations, 0)


@dataclass(slots=True)
class _Scan:
    """What goes into a loop and comes out of it, as it is found.

    Attributes:
      constants: Variables from further out.
      first: For each place of the carry what the first turn gets.
      carried: For each place what every turn gets.
      slices: Variables of slices, each with its array.
      following: For each place of the carry what a turn hands on.
      last: For each place what the last turn handed on.
      zeros: Equations that make what the first turn gets where there was no turn before; they stand before the loop.
      stacks: What is stacked, each with the variable of the stack.
      picked: Variables of slices of whole arrays, in a stretch, each with its array.
      placed: What a stretch puts into whole arrays: the array as a turn gets it, the value, the array as it leaves it.
      laid_out: Of a stretch the equations that say how what it hands on lies.
      counter: Of a stretch, where something is picked or placed.
      numbers: Of a loop whose turns are numbered.
      own_counters: What numbered turns count by themselves, each with the number of the first.
    """

    constants: dict[Any, None] = field(default_factory=dict)
    first: dict[int, Atom] = field(default_factory=dict)
    carried: dict[int, Any] = field(default_factory=dict)
    slices: dict[Any, Atom] = field(default_factory=dict)
    following: Sequence[Atom] = ()
    last: Sequence[Any] = ()
    stacks: list[tuple[Atom, Any]] = field(default_factory=list)
    zeros: list[Any] = field(default_factory=list)
    picked: dict[Any, Atom] = field(default_factory=dict)
    placed: list[tuple[Any, Atom, Any]] = field(default_factory=list)
    row_major: list[Any] = field(default_factory=list)
    counter: IterationCounter | None = None
    numbers: IterationNumbers | None = None
    own_counters: dict[Any, int] = field(default_factory=dict)

    def turn(self, *, first: Atom, carried: Any, following: Atom, last: Any = None) -> Any:
        """Adds a place to the carry; what the last turn handed on, under a new variable or one that exists."""
        place = max(self.carried, default=-1) + 1
        self.first[place], self.carried[place] = first, carried
        last = last or jex.Var(carried.aval)
        self.following, self.last = (*self.following, following), (*self.last, last)
        return last

    def hand_on_laid_out(self, like: Any) -> None:
        """Says how that lies which a turn hands on."""
        following = list(self.following)
        for place, atom in enumerate(following):
            if has_layout_choice(atom):
                following[place] = jex.Var(atom.aval)
                self.row_major += row_major(atom, following[place], like=like)
        self.following = following


@dataclass(frozen=True, slots=True)
class _Filled:
    """A whole array that several loops fill, or groups of turns.

    Attributes:
      loops: They, in the order in which they run; of groups the loop of their turns.
      values: What the turns of each put into their places.
      beside: The equation after which what is made for it is named.
    """

    loops: Sequence[int]
    values: Sequence[Atom]
    like: Any


class _Closer:
    def __init__(self, equations: Sequence[Equation], loops: Sequence[OpenLoop], *, inside: bool = False):
        """`inside`: the equations stand in bodies of `shard_map`, and so do the loops that count."""
        self._loops = loops
        self._paths = [tuple(k for k in p if not inside or loops[k].manual is not None) for p in loop_paths(loops)]
        self._scans = [_Scan() for _ in loops]
        self._home = {v: self._path(equation) for equation in equations for v in equation.eqn.outvars}
        self._stacked: dict[Any, Any] = {}
        self._whole: dict[Any, _Filled] = {}
        """The stacks that several stretches make, or groups."""
        self._conds = _conds_of(loops)
        for equation in equations:
            if equation.eqn.primitive.name == STACK:
                self._note_stack(equation.eqn)
        for equation in equations:
            self._connect(equation)
        for scan, opened in zip(self._scans, loops, strict=True):
            if opened.offset is not None:
                scan.hand_on_laid_out(opened.eqn)
        for stack, filled in self._whole.items():
            self._fill(stack, filled)
        for loop in {
            each for inner, opened in enumerate(loops) if opened.is_inner_tile for each in self._counted(inner)
        }:
            self._scans[loop].hand_on_laid_out(loops[loop].eqn)
        for loop, scan in enumerate(self._scans):
            if loops[loop].reads_iteration_number:
                self._number(loop, equations)
            elif scan.picked or scan.placed:
                self._count(loop)
        self._last: dict[Any, Any] = {}
        self._turned = {id(e.eqn): self._ahead(e) for e in equations if e.is_pipelined}

    def _parent(self, loop: int) -> int | None:
        return next(iter(self._paths[loop][-2:-1]), None)

    def _path(self, equation: Equation) -> tuple[int, ...]:
        return () if equation.loop is None else self._paths[equation.loop]

    def _note_stack(self, eqn: Any) -> None:
        """A value that the step stacks itself is not stacked a second time, but for what is there to be shown."""
        (stack,), loops = eqn.outvars, stack_writers(eqn)
        if len(loops) > 1 or self._loops[loops[0]].is_inner_tile:
            self._whole[stack] = _Filled(loops=loops, values=eqn.invars, like=eqn)
        else:
            self._scans[loops[0]].stacks.append((eqn.invars[0], stack))
        if IS_PROBE in eqn.params:
            return
        for loop, value in zip(loops, eqn.invars, strict=True):
            if isinstance(value, jex.Var) and self._home.get(value, ()) == self._paths[loop]:
                self._stacked.setdefault(value, stack)

    def _fill(self, stack: Any, filled: _Filled) -> None:
        """A stack that loops fill one after the other: zeros first, and each hands it on to the next."""
        eqns, whole = zeros_like_aval(stack.aval, filled.like)
        self._scans[self._counted(filled.loops[0])[0]].zeros += eqns
        for loop, value in zip(filled.loops, filled.values, strict=True):
            last = stack if loop == filled.loops[-1] else jex.Var(stack.aval)
            self._fill_turns(loop, value, first=whole, last=last)
            whole = last

    def _fill_turns(self, loop: int, value: Atom, *, first: Any, last: Any) -> None:
        """A loop's part of a stack: a turn gets it from the one before, in the first of a group from the group."""
        for around in self._counted(loop):
            carried, following = jex.Var(last.aval), jex.Var(last.aval)
            self._scans[around].turn(first=first, carried=carried, following=following, last=last)
            first, last = carried, following
        self._scans[loop].placed.append((first, value, last))

    def _counted(self, loop: int) -> tuple[int, ...]:
        """The loops through whose turns an array is gone through: the one of groups around, and itself."""
        parent = self._loops[loop].parent
        return (parent, loop) if self._loops[loop].is_inner_tile and parent is not None else (loop,)

    def _count(self, loop: int) -> IterationCounter:
        """The counter of a loop's turns; that of groups is made for that of their turns."""
        scan, opened = self._scans[loop], self._loops[loop]
        if scan.counter is None:
            *groups, _ = self._counted(loop)
            around = self._count(groups[0]) if groups else None
            stride = next((i.eqn.params["length"] for i in self._loops if i.is_inner_tile and i.parent == loop), 1)
            scan.counter = IterationCounter(opened, stride=stride, around=around)
            scan.zeros += scan.counter.before
            scan.turn(first=scan.counter.first, carried=scan.counter.carried, following=scan.counter.following)
        return scan.counter

    def _number(self, loop: int, equations: Sequence[Equation]) -> None:
        """Gives each turn its number, for its slices and for what it counts by itself, if there is any of it."""
        scan = self._scans[loop]
        counting = induction_variables(equations, scan.first, scan.carried, scan.following)
        if not scan.picked and not counting:
            return
        numbers = scan.numbers = IterationNumbers(self._loops[loop])
        scan.zeros += numbers.before
        scan.slices[numbers.behind] = numbers.array
        for place, begin in counting.items():
            scan.own_counters[scan.carried[place]] = begin
            scan.carried[place] = jex.Var(scan.carried[place].aval)

    def _connect(self, equation: Equation) -> None:
        """Notes what an equation reads from outside of its loop, and what it says of one."""
        eqn, path = equation.eqn, self._path(equation)
        if not is_loop_boundary(eqn):
            for variable in equation.variables():
                self._show(variable, path)
            return
        loop = eqn.params["loop"]
        if eqn.primitive.name == COND_END:
            self._end_cond(eqn, path)
            return
        scan, inside = self._scans[loop], self._paths[loop]
        if eqn.primitive.name == STACK:
            for stretch, value in zip(stack_writers(eqn), eqn.invars, strict=True):
                if isinstance(value, jex.Var):
                    self._show(value, self._paths[stretch])
            return
        picks = eqn.primitive.name == SLICE and self._picks(loop, eqn.outvars[0])
        for variable in equation.variables():
            self._show(variable, inside if eqn.primitive.name == END or picks else inside[:-1])
        match eqn.primitive.name:
            case _ if picks:
                scan.picked[eqn.outvars[0]] = eqn.invars[0]
            case name if name == CARRY:
                scan.first[eqn.params["index"]] = eqn.invars[0]
                scan.carried[eqn.params["index"]] = eqn.outvars[0]
            case name if name == SLICE:
                scan.slices[eqn.outvars[0]] = eqn.invars[0]
            case name if name == END:
                scan.following, scan.last = eqn.invars, eqn.outvars

    def _picks(self, loop: int, slice_: Any) -> bool:
        """Whether turns pick their slices of an array themselves; of keys they do where no scan can."""
        opened = self._loops[loop]
        is_number = jnp.issubdtype(slice_.aval.dtype, jnp.generic)
        return opened.is_inner_tile or opened.offset is not None or (opened.reads_iteration_number and is_number)

    def _end_cond(self, eqn: Any, path: tuple[int, ...]) -> None:
        """What one of several branches gives."""
        index, *values = eqn.invars
        loops = eqn.params[BRANCHES]
        cond = self._conds[loops[0]]
        cond.index = index
        cond.results.append((eqn.outvars[0], values))
        for atom, there in zip(eqn.invars, (path, *(self._paths[loop] for loop in loops)), strict=True):
            if isinstance(atom, jex.Var):
                self._show(atom, there)

    def _show(self, variable: Any, path: tuple[int, ...]) -> None:
        """Makes a variable readable in a body."""
        home = self._home.get(variable, ())
        level = path[: len(home)]
        for loop in path[len(home) :]:
            self._scans[loop].constants.setdefault(variable)
        if home == level:
            return
        if variable not in self._stacked:
            self._stack(variable, home, path)
        stack = self._stacked[variable]
        if stack in self._whole:
            self._scans[level[-1]].picked[variable] = stack
            self._show(stack, level)
            return
        self._scans[level[-1]].slices[variable] = stack
        self._show(stack, level[:-1])

    def _waiting(self, variable: Any, loop: int) -> Any:
        """The stack in which the values of all turns wait; of a branch a slot, which another branch may use too."""
        if loop not in self._conds:
            return jex.Var(self._loops[loop].stacked_aval(variable.aval))
        return self._conds[loop].slot(variable.aval, [stack for _, stack in self._scans[loop].stacks])

    def _stack(self, variable: Any, home: tuple[int, ...], path: tuple[int, ...]) -> None:
        """A stack for a body of what another one makes: of a nested loop for all groups, but in a body of the group.

        Of keys, which are no numbers, there is one for each group, and one of these.
        """
        loop = home[-1]
        counted = self._counted(loop)
        if len(counted) > 1 and counted[0] not in path and jnp.issubdtype(variable.aval.dtype, jnp.generic):
            length = prod(self._loops[each].length for each in counted)
            stack = jex.Var(_compat.stacked_aval(length, variable.aval))
            self._home[stack] = home[: -len(counted)]
            self._whole[stack] = _Filled(loops=(loop,), values=[variable], like=self._loops[loop].eqn)
        else:
            stack = self._waiting(variable, loop)
            self._home[stack] = home[:-1]
            self._scans[loop].stacks.append((variable, stack))
        self._stacked[variable] = stack

    def _ahead(self, equation: Equation) -> Any:
        """The equation as it runs a turn later than what it reads, or a turn earlier than what reads it."""
        (read,), (made,) = equation.eqn.invars, equation.eqn.outvars
        assert equation.loop is not None, "turns are those of a loop"
        scan, path = self._scans[equation.loop], self._path(equation)
        if self._home[read] == path:
            eqns, zeros = zeros_like_aval(read.aval, equation.eqn)
            before = jex.Var(read.aval)
            scan.zeros += eqns
            self._last[made] = scan.turn(first=zeros, carried=before, following=read)
            self._home.update({self._last[made]: path[:-1], **{v: path[:-1] for eqn in eqns for v in eqn.outvars}})
            return equation.eqn.replace(invars=[before])
        following = jex.Var(made.aval)
        self._show(self._last[read], path[:-1])
        scan.turn(first=self._last[read], carried=made, following=following)
        return equation.eqn.replace(outvars=[following])

    def level(self, equations: Sequence[Equation], depth: int) -> Iterator[Any]:
        """The equations of one level: those of deeper ones are in scans and conds."""

        def deeper(equation: Equation) -> int | None:
            path = self._path(equation)
            return path[depth] if len(path) > depth else None

        groups = [(loop, list(group)) for loop, group in groupby(equations, deeper)]
        branches = _Branches(self._conds, groups)
        for loop, group in groups:
            if loop is not None:
                around = self._parent(loop)
                yield from (self._within(eqn, around) for eqn in self._scans[loop].zeros)
                if loop not in self._conds:
                    yield self._scan(loop, group, depth)
                elif branches.is_last(loop):
                    yield self._cond(self._conds[loop], branches, depth)
                continue
            for equation in group:
                if not is_loop_boundary(equation.eqn):
                    eqn = self._turned[id(equation.eqn)] if equation.is_pipelined else equation.eqn
                    yield self._within(eqn, None if not depth else self._path(equation)[depth - 1])
                elif branches.are_empty(equation.eqn):
                    yield self._cond(self._conds[equation.eqn.params["loop"]], branches, depth)

    def _within(self, eqn: Any, loop: int | None) -> Any:
        """An equation as it stands in a body: its name stack begins there."""
        if loop is None:
            return eqn
        around, stack = self._loops[loop].eqn.source_info.name_stack, eqn.source_info.name_stack
        common = _compat.common_names(around, stack)
        return eqn.replace(source_info=eqn.source_info.replace(name_stack=stack[common:])) if common else eqn

    def _scan(self, loop: int, equations: list[Equation], depth: int) -> Any:
        scan, template = self._scans[loop], self._loops[loop].eqn
        body = [e for e in equations if not is_loop_boundary(e.eqn) or e.loop != loop or e.eqn.params["loop"] != loop]
        places = sorted(scan.carried)
        invars = [*scan.constants, *(scan.carried[k] for k in places), *scan.slices]
        outvars = [*scan.following, *(value for value, _ in scan.stacks)]
        debug_info = jex.DebugInfo("jaxckpt", template.params["jaxpr"].debug_info.func_src_info, None, None)
        eqns = [*self._picking(loop), *self.level(body, depth + 1), *self._placing(loop)]
        effects = frozenset().union(*(eqn.effects for eqn in eqns))
        jaxpr = jex.Jaxpr(
            constvars=(),
            invars=invars,
            outvars=outvars,
            eqns=eqns,
            effects=effects,
            debug_info=debug_info,
        )
        sizes = (len(scan.constants), len(places), len(scan.slices), len(scan.stacks))
        operands = [*scan.constants, *(scan.first[k] for k in places), *scan.slices.values()]
        eqn = template.replace(
            invars=operands,
            outvars=[*scan.last, *(stack for _, stack in scan.stacks)],
            effects=effects,
            params=_compat.scan_params(template.params, JAXPRS[1](jaxpr, ()), *sizes),
        )
        return self._within(eqn, self._parent(loop))

    def _cond(self, cond: Cond, branches: "_Branches", depth: int) -> Any:
        """The cond of some branches, whose equations may be none."""
        bodies = []
        for loop in cond.loops:
            scan = self._scans[loop]
            bodies.append(
                BranchBody(
                    operands={**{v: v for v in scan.constants}, **scan.slices},
                    eqns=list(self.level(branches.of(loop), depth + 1)),
                    left={slot: value for value, slot in scan.stacks},
                )
            )
        template = self._loops[cond.loops[0]].eqn
        stack = template.source_info.name_stack
        eqn = cond_eqn(cond, bodies, template)
        named = eqn.replace(source_info=eqn.source_info.replace(name_stack=stack[: len(stack) - 1]))
        return self._within(named, self._parent(cond.loops[0]))

    def _picking(self, loop: int) -> Iterator[Any]:
        """What a turn of a stretch, or a numbered one, does first: it takes its slices of whole arrays."""
        scan = self._scans[loop]
        place = scan.numbers or scan.counter
        for variable, begin in scan.own_counters.items():
            assert scan.numbers is not None, "numbered turns count"
            yield from (self._within(eqn, loop) for eqn in scan.numbers.count(begin, variable))
        for variable, array in scan.picked.items():
            assert place is not None, "it was made for what is picked"
            yield from (self._within(eqn, loop) for eqn in place.pick(array, variable))

    def _placing(self, loop: int) -> Iterator[Any]:
        """What it does last: it fills its places in whole arrays, says how that lies which it hands on, and counts."""
        scan = self._scans[loop]
        for carried, value, following in scan.placed:
            assert scan.counter is not None, "it was made for what is placed"
            yield from (self._within(eqn, loop) for eqn in scan.counter.place(carried, value, following))
        yield from (self._within(eqn, loop) for eqn in scan.row_major)
        if scan.counter is not None:
            yield from (self._within(eqn, loop) for eqn in scan.counter.advance())


class _Branches:
    """The equations of the branches at one level, and which conds are closed there already."""

    def __init__(self, conds: dict[int, Cond], groups: Sequence[tuple[int | None, list[Equation]]]):
        self._conds = conds
        self._inside: dict[int, list[Equation]] = {}
        self._last: dict[int, int] = {}
        for loop, group in groups:
            if loop is not None and loop in conds:
                self._inside[loop] = group
                self._last[conds[loop].loops[0]] = loop

    def of(self, loop: int) -> Sequence[Equation]:
        """The equations of a branch."""
        return self._inside.get(loop, ())

    def is_last(self, loop: int) -> bool:
        """Whether no later branch of the same cond has equations."""
        return self._last[self._conds[loop].loops[0]] == loop

    def are_empty(self, eqn: Any) -> bool:
        """Whether an equation is the first sign of a cond, whose branches have no equations."""
        if eqn.primitive.name != COND_END or eqn.params[BRANCHES][0] in self._last:
            return False
        self._last[eqn.params[BRANCHES][0]] = eqn.params["loop"]
        return True


def _conds_of(loops: Sequence[OpenLoop]) -> dict[int, Cond]:
    """For each branch its cond."""
    together: dict[int, list[int]] = {}
    for loop, opened in enumerate(loops):
        if opened.cond_branch is not None:
            together.setdefault(opened.cond_branch.branch.cond, []).append(loop)
    conds: dict[int, Cond] = {}
    for branches in together.values():
        cond_branch = loops[branches[0]].cond_branch
        assert cond_branch is not None, "they are branches"
        cond = Cond(loops=tuple(branches), index=cond_branch.index)
        conds.update(dict.fromkeys(branches, cond))
    return conds
