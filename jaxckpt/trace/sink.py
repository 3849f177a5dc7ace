"""Code sinking: elementwise ops of the backward pass move to their first reader, where nothing is live longer for it.

XLA orders ops as it likes, but not across a barrier, and a plan puts its barriers before ops that read what is
recomputed. Of `y = a * f(x)` differentiation computes the gradient of `f(x)` first, and the gradient of `a` second,
for which `f(x)` is recomputed. A barrier between the two keeps the first gradient and the cotangent of `y` in memory.
Behind the barrier, where `jax.checkpoint` computes both gradients, only the cotangent is.

Ops in bodies of open loops stay: no compiled program with such ops moved was looked at.

     before: 4  5 reads 4  6 reads 4, f(x)  7 reads 5  8 reads 4      after: 4  6  5  7  8

Complexity: linear, plus a sort.
"""

from collections import defaultdict
from collections.abc import Sequence

import jax.extend.core as jex

from jaxckpt.ir import Phase
from jaxckpt.ir.kind import Kind, kind_of
from jaxckpt.program.flat_program import Equation, FlatProgram
from jaxckpt.program.open_loops import Visibility, indices_of


def sink_elementwise(program: FlatProgram, phases: Sequence[Phase]) -> tuple[FlatProgram, tuple[Phase, ...]]:
    """Moves elementwise equations of the backward to their first readers; gives the program in its new order.

    An equation moves if each of its operands is an argument, a constant, or read at the equation's first reader or
    later: then only the live range of its result changes, and gets shorter.
    """
    readers, last = _readers(program)
    computed = {v for equation in program.equations for v in equation.eqn.outvars}
    place = list(range(len(program.equations)))
    for position in reversed(place):
        equation = program.equations[position]
        if phases[position] is not Phase.BACKWARD or not _may_move(equation):
            continue
        reader = min(readers[equation.eqn.outvars[0]], key=lambda each: (place[each], each), default=None)
        if reader is None or place[reader] <= position + 1 or not _is_outside(program.equations[reader]):
            continue
        target = place[reader]
        if all(last[v] >= target for v in equation.variables() if v in computed):
            place[position] = target
            last.update((v, max(last[v], target)) for v in equation.variables())
    order = sorted(range(len(place)), key=lambda position: (place[position], position))
    equations = tuple(program.equations[position] for position in order)
    return program.replace(equations=equations), tuple(phases[position] for position in order)


def _readers(program: FlatProgram) -> tuple[defaultdict[jex.Var, list[int]], dict[jex.Var, int]]:
    """The equations that read each variable, and the last of them; results are read behind all of them.

    The first equation of a branch reads the index of the cond.
    """
    readers: defaultdict[jex.Var, list[int]] = defaultdict(list)
    entered: set[int] = set()
    path = Visibility(program.loops).path
    for position, equation in enumerate(program.equations):
        first = set(path(equation.loop)) - entered
        entered |= first
        for variable in (*equation.variables(), *(index for index, _ in indices_of(first, program.loops))):
            readers[variable].append(position)
    last = {variable: positions[-1] for variable, positions in readers.items()}
    results = (v for v in program.outvars if isinstance(v, jex.Var))
    last.update(dict.fromkeys(results, len(program.equations)))
    return readers, last


def _may_move(equation: Equation) -> bool:
    is_elementwise = kind_of(equation.eqn.primitive.name) is Kind.ELEMENTWISE
    return is_elementwise and _is_outside(equation) and not equation.effects and len(equation.eqn.outvars) == 1


def _is_outside(equation: Equation) -> bool:
    return equation.loop is None and equation.manual is None
