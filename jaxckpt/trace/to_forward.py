"""Forward equations that stand in the backward pass go back to the forward pass.

After merging, some equations of a user's checkpoint have no original: residuals that only the backward needs (a mask,
a derivative's factor). Without the checkpoint JAX would have made them in the forward pass; so they are moved to just
behind what they read, under the forward's name stack, and the graph is that of the step without checkpoints. With
them go figures that the user takes from the forward pass after calling the gradient.

Read after `phase`, which has found them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax.extend.core as jex

from jaxckpt.ir import Phase
from jaxckpt.ir.loop import SLICE
from jaxckpt.ir.shard_map import TO_SHARDS
from jaxckpt.program.flat_program import Equation, FlatProgram
from jaxckpt.program.open_scan import Visibility
from jaxckpt.program.scope import forward_name_stack
from jaxckpt.trace.phase import PhaseAssignment


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where an equation goes: behind which position, and into which open loop's body."""

    behind: int
    loop: int | None


def move_to_forward(program: FlatProgram, phased: PhaseAssignment) -> tuple[FlatProgram, tuple[Phase, ...]]:
    """Moves the early equations of a program to the forward pass.

    Args:
      program: Merged and pruned.
      phased: Its phases.

    Returns:
      The program in its new order, and one phase an equation in that order. An early equation that reads arguments
      and constants alone, and is read by the backward alone, stays where it is.
    """
    if not phased.early:
        return program, phased.phases
    places, slices = _places(program, frozenset(phased.early))
    positions = range(len(phased.phases))
    order = sorted(positions, key=lambda p: (places[p].behind, 1, p) if p in places else (p, 0, 0))
    equations = tuple(
        _as_forward(program.equations[p], places[p], slices) if p in places else program.equations[p] for p in order
    )
    phases = tuple(phased.phases[p] if p in places else phased.early.get(p, phased.phases[p]) for p in order)
    return program.replace(equations=equations), phases


def _as_forward(equation: Equation, place: _Place, slices: Mapping[Any, Any]) -> Equation:
    info = equation.eqn.source_info
    forward = info.replace(name_stack=forward_name_stack(info.name_stack))
    reads = [slices.get(atom, atom) if isinstance(atom, jex.Var) else atom for atom in equation.eqn.invars]
    if place.loop == equation.loop:
        reads = equation.eqn.invars
    return replace(equation, eqn=equation.eqn.replace(source_info=forward, invars=reads), loop=place.loop)


def _places(program: FlatProgram, moved: frozenset[int]) -> tuple[dict[int, _Place], dict[Any, Any]]:
    """Where each moved equation goes; those that stay are left out. And for slices the earlier ones that are equal."""
    visibility = Visibility(program.loops)
    at: dict[Any, _Place] = {}
    places: dict[int, _Place] = {}
    slices: dict[Any, Any] = {}
    first: dict[Any, Any] = {}
    for position, equation in enumerate(program.equations):
        if equation.eqn.primitive.name == SLICE:
            shown = equation.eqn.outvars[0]
            slices[shown] = first.setdefault((equation.eqn.invars[0], visibility.iteration_space(equation.loop)), shown)
        elif equation.eqn.primitive.name == TO_SHARDS:
            (array,), (shown,) = equation.eqn.invars, equation.eqn.outvars
            array = slices.get(array, array) if isinstance(array, jex.Var) else array
            key = (array, equation.eqn.params["split"], equation.manual, visibility.iteration_space(equation.loop))
            slices[shown] = shown if isinstance(array, jex.Literal) else first.setdefault(key, shown)
        anchors = [at[v] for v in (slices.get(v, v) for v in equation.variables()) if v in at]
        place = _Place(behind=position, loop=equation.loop)
        if position in moved:
            if not anchors:
                continue
            last = max(anchors, key=lambda anchor: anchor.behind)
            if all(visibility.can_read(last.loop, anchor.loop) for anchor in anchors):
                places[position] = place = last
        at.update(dict.fromkeys(equation.eqn.outvars, place))
    _place_rootless(program, moved, places)
    return places, slices


def _place_rootless(program: FlatProgram, moved: frozenset[int], places: dict[int, _Place]) -> None:
    """Equations that read no other one go where the first moved equation wants them."""
    wanted: dict[Any, _Place] = {}
    for position in reversed(range(len(program.equations))):
        equation = program.equations[position]
        if position not in moved:
            continue
        if position not in places:
            readers = [wanted[v] for v in equation.eqn.outvars if v in wanted]
            if not readers or any(reader.loop != readers[0].loop for reader in readers):
                continue
            places[position] = min(readers, key=lambda reader: reader.behind)
        for variable in equation.variables():
            before = wanted.get(variable, places[position])
            wanted[variable] = min(places[position], before, key=lambda place: place.behind)
