"""Forward equations that stand in the backward pass go back to the forward pass.

After merging, some equations of a user's checkpoint have no original: residuals that only the backward needs (a mask,
a derivative's factor). Without the checkpoint JAX would have made them in the forward pass; so they are moved to just
behind what they read, under the forward's name stack, and the graph is that of the step without checkpoints. With
them go figures that the user takes from the forward pass after calling the gradient.

Read after `phase`, which has found them.
"""

from typing import Any

from jaxckpt.ir import Phase
from jaxckpt.trace.phase import Phased
from jaxckpt.trace.program import Equation, Program
from jaxckpt.trace.scope import untransposed

_Place = tuple[int, int, int]
"""Where an equation goes: behind which position, whether it was moved, where it came from."""


def hoist(program: Program, phased: Phased) -> tuple[Program, tuple[Phase, ...]]:
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
    places = _places(program, frozenset(phased.early))
    positions = range(len(phased.phases))
    order = sorted(positions, key=lambda position: places.get(position, (position, 0, 0)))
    equations = tuple(_as_forward(program.equations[p]) if p in places else program.equations[p] for p in order)
    phases = tuple(phased.phases[p] if p in places else phased.early.get(p, phased.phases[p]) for p in order)
    return program.replace(equations=equations), phases


def _as_forward(equation: Equation) -> Equation:
    info = equation.eqn.source_info
    forward = info.replace(name_stack=untransposed(info.name_stack))
    return Equation(equation.eqn.replace(source_info=forward), equation.again)


def _places(program: Program, moved: frozenset[int]) -> dict[int, _Place]:
    """Behind which position each moved equation goes; those that stay are left out."""
    behind: dict[Any, int] = {}
    places: dict[int, _Place] = {}
    for position, equation in enumerate(program.equations):
        anchors = [behind[v] for v in equation.variables() if v in behind]
        if position not in moved:
            behind.update(dict.fromkeys(equation.eqn.outvars, position))
        elif anchors:
            places[position] = (max(anchors), 1, position)
            behind.update(dict.fromkeys(equation.eqn.outvars, max(anchors)))
    _place_rootless(program, moved, places)
    return places


def _place_rootless(program: Program, moved: frozenset[int], places: dict[int, _Place]) -> None:
    """Equations that read no other one go where the first moved equation wants them."""
    wanted: dict[Any, int] = {}
    for position in reversed(range(len(program.equations))):
        equation = program.equations[position]
        if position not in moved:
            continue
        if position not in places:
            readers = [wanted[v] for v in equation.eqn.outvars if v in wanted]
            if not readers:
                continue
            places[position] = (min(readers), 1, position)
        for variable in equation.variables():
            wanted[variable] = min(places[position][0], wanted.get(variable, places[position][0]))
