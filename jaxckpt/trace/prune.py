"""Equations whose results nobody reads go away, unless they have effects.

Read after `merge`, which leaves many of them. Whole ops are kept or dropped as they are: a loop of which only one
result is read still makes the others.
"""

from jaxckpt.trace.program import Program


def prune(program: Program) -> Program:
    """Drops dead equations and the constants that only they read.

    Args:
      program: Any program.

    Returns:
      The same results and the same effects, with what is needed for them.
    """
    needed = {id(atom) for atom in program.outvars}
    kept = []
    for equation in reversed(program.equations):
        eqn = equation.eqn
        if eqn.effects or any(id(variable) in needed for variable in eqn.outvars):
            needed.update(id(variable) for variable in equation.variables())
            kept.append(equation)
    constants = tuple(constant for constant in program.constants if id(constant[0]) in needed)
    return program.replace(equations=tuple(reversed(kept)), constants=constants)
