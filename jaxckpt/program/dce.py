"""Equations whose results nobody reads go away, unless they have effects.

Read after `merge`, which leaves many of them. Whole ops are kept or dropped as they are: a loop of which only one
result is read still makes the others. An open loop that is needed for anything hands on from turn to turn all that it
did.
"""

from typing import Any

import jax.extend.core as jex

from jaxckpt.ir.loop import CARRY, END
from jaxckpt.program.flat_program import Equation, FlatProgram


def eliminate_dead_code(program: FlatProgram) -> FlatProgram:
    """Drops dead equations and the constants that only they read.

    Args:
      program: Any program.

    Returns:
      The same results and the same effects, with what is needed for them.
    """
    maker = {v: equation for equation in program.equations for v in equation.eqn.outvars}
    hands_on: dict[int, list[Equation]] = {}
    for equation in program.equations:
        if equation.eqn.primitive.name in (CARRY, END):
            hands_on.setdefault(equation.eqn.params["loop"], []).append(equation)
    kept: set[int] = set()
    needed: set[Any] = set()
    pending: list[Equation] = [equation for equation in program.equations if equation.effects]
    read: list[Any] = [atom for atom in program.outvars if isinstance(atom, jex.Var)]
    while pending or read:
        while read:
            variable = read.pop()
            if variable not in needed:
                needed.add(variable)
                pending.extend([maker[variable]] if variable in maker else [])
        if pending and id(equation := pending.pop()) not in kept:
            kept.add(id(equation))
            read.extend(equation.variables())
            if equation.eqn.primitive.name in (CARRY, END):
                pending.extend(hands_on[equation.eqn.params["loop"]])
    constants = tuple(constant for constant in program.constants if constant[0] in needed)
    return program.replace(equations=tuple(e for e in program.equations if id(e) in kept), constants=constants)
