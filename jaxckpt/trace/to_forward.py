"""Moves forward equations out of the backward pass, back to the forward pass.

Some clones of a user's checkpoint have no original after common subexpression elimination: residuals that only the
backward pass needs (a mask, a derivative's factor). Without the checkpoint JAX would compute them in the forward pass.
So each is moved to just behind the equations that it reads, under the forward's name stack, and the graph is that of
the step without checkpoints. Metrics that the user computes from forward values after the gradient are moved as well.

`phase` has found both.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import jax.extend.core as jex

from jaxckpt.ir import Phase
from jaxckpt.ir.regions import SLICE, TO_SHARDS
from jaxckpt.program.flat_program import Equation, FlatProgram, renamed
from jaxckpt.program.open_scan import Visibility
from jaxckpt.program.scope import forward_name_stack
from jaxckpt.trace.phase import PhaseAssignment


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    """The new place of an equation: behind which position, and in which open loop's body."""

    behind: int
    loop: int | None


def move_to_forward(program: FlatProgram, assignment: PhaseAssignment) -> tuple[FlatProgram, tuple[Phase, ...]]:
    """Moves the displaced equations of a program to the forward pass; gives it in its new order, with its phases.

    A displaced equation that reads arguments and constants alone, and is read by the backward alone, stays where it is.
    """
    if not assignment.displaced:
        return program, assignment.phases
    displaced, phases = frozenset(assignment.displaced), assignment.phases
    same = _first_equal_parts(program)
    targets = _targets(program, displaced, same)
    _add_rootless(program, displaced, targets)
    order = sorted(range(len(phases)), key=lambda p: (targets[p].behind, 1, p) if p in targets else (p, 0, 0))
    equations = tuple(
        _as_forward(program.equations[p], targets[p], same) if p in targets else program.equations[p] for p in order
    )
    phases = tuple(phases[p] if p in targets else assignment.displaced.get(p, phases[p]) for p in order)
    return program.replace(equations=equations), phases


def _as_forward(equation: Equation, target: _Target, same: Mapping[jex.Var, jex.Var]) -> Equation:
    info = equation.eqn.source_info
    forward = info.replace(name_stack=forward_name_stack(info.name_stack))
    reads = equation.eqn.invars
    if target.loop != equation.loop:
        reads = [renamed(atom, same) for atom in reads]
    return replace(equation, eqn=equation.eqn.replace(source_info=forward, invars=reads), loop=target.loop)


def _first_equal_parts(program: FlatProgram) -> dict[jex.Var, jex.Var]:
    """For each slice and each shard of an array the first equal one; slices are equal iteration by iteration."""
    visibility = Visibility(program.loops)
    same: dict[jex.Var, jex.Var] = {}
    first: dict[object, jex.Var] = {}
    for equation in program.equations:
        if equation.eqn.primitive.name not in (SLICE, TO_SHARDS):
            continue
        (array,), (part,) = equation.eqn.invars, equation.eqn.outvars
        space = visibility.iteration_space(equation.loop)
        if equation.eqn.primitive.name == SLICE:
            same[part] = first.setdefault((array, space), part)
        elif isinstance(array, jex.Literal):
            same[part] = part
        else:
            key = (renamed(array, same), equation.eqn.params["split"], equation.manual, space)
            same[part] = first.setdefault(key, part)
    return same


def _targets(program: FlatProgram, displaced: frozenset[int], same: Mapping[jex.Var, jex.Var]) -> dict[int, _Target]:
    """For each displaced position the last equation that it reads, unless it reads arguments and constants alone."""
    visibility = Visibility(program.loops)
    place: dict[jex.Var, _Target] = {}
    targets: dict[int, _Target] = {}
    for position, equation in enumerate(program.equations):
        own = _Target(behind=position, loop=equation.loop)
        if position in displaced:
            read = [place[v] for v in (same.get(v, v) for v in equation.variables()) if v in place]
            if not read:
                continue
            last = max(read, key=lambda target: target.behind)
            if all(visibility.can_read(last.loop, target.loop) for target in read):
                targets[position] = own = last
        place.update(dict.fromkeys(equation.eqn.outvars, own))
    return targets


def _add_rootless(program: FlatProgram, displaced: frozenset[int], targets: dict[int, _Target]) -> None:
    """Displaced equations that read no other one go where the first moved equation that reads them goes."""
    wanted: dict[jex.Var, _Target] = {}
    for position in sorted(displaced, reverse=True):
        equation = program.equations[position]
        if position not in targets:
            readers = [wanted[v] for v in equation.eqn.outvars if v in wanted]
            if not readers or any(reader.loop != readers[0].loop for reader in readers):
                continue
            targets[position] = min(readers, key=lambda reader: reader.behind)
        for variable in equation.variables():
            before = wanted.get(variable, targets[position])
            wanted[variable] = min(targets[position], before, key=lambda target: target.behind)
