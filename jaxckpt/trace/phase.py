"""Every equation gets its phase, from the marks that differentiation leaves in the name stack.

The outermost mark decides: `transpose(` is backward, `jvp(` outside any transpose is forward, so that a gradient
inside the loss (`jvp(transpose(jvp(...)))`) belongs to the forward of the outer one. An equation without a mark
is update where it follows from the backward or serves only what does, else forward. A forward-over-reverse product
puts one more `jvp(` around everything; marks are then read below it.

Where nothing is marked at all (a backward written by hand, names stripped), the order itself is split where most
bytes wait: see `phases_from_liveness`. Read after `merge`; `move_to_forward` follows.
"""

from bisect import bisect_right, insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import jax.extend.core as jex

from jaxckpt import _compat
from jaxckpt._errors import NoGradientError
from jaxckpt.ir import Kind, Phase, kind_of
from jaxckpt.ir.loop import SLICE
from jaxckpt.ir.scope import JVP, TRANSPOSE, Marks
from jaxckpt.ir.shard_map import TO_SHARDS
from jaxckpt.program.flat_program import Equation, FlatProgram
from jaxckpt.program.open_scan import has_transpose, is_loop_boundary
from jaxckpt.trace.sharding import aval_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseAssignment:
    """The phases of a program's equations.

    Attributes:
      phases: One an equation.
      early: Positions of forward equations that stand behind the start of the backward pass and read nothing of it:
        what the user's checkpoint computes again, and figures taken from the forward pass after the gradient. Each
        with the phase that it has if it stays where it stands.
    """

    phases: tuple[Phase, ...]
    early: Mapping[int, Phase] = field(default_factory=dict)


def phases_from_marks(program: FlatProgram) -> PhaseAssignment | None:
    """The phase of each equation by the marks in its name stack.

    Args:
      program: Inlined and merged.

    Returns:
      The phases, or None where no equation carries a mark.

    Raises:
      NoGradientError: There are marks, and none of them is a transpose.
    """
    stacks = [_compat.name_stack_marks(e.eqn.source_info.name_stack) for e in program.equations]
    transforms = [tuple(mark for mark in stack if mark in (JVP, TRANSPOSE)) for stack in stacks]
    if not any(transforms):
        return None
    if not any(TRANSPOSE in marks for marks in transforms):
        raise no_gradient(program, "equations marked by differentiation, but none of a backward pass")
    depth = min(marks.index(TRANSPOSE) for marks in transforms if TRANSPOSE in marks)
    marked = [_phase_of_marks(marks[depth:]) for marks in transforms]
    phases = _settled(program, marked)
    settled = _serving_update(program, phases, marked)
    again = {
        position: Phase.BACKWARD
        for position, (phase, mark) in enumerate(zip(settled, marked, strict=True))
        if phase is Phase.FORWARD and mark is Phase.BACKWARD
    }
    return PhaseAssignment(phases=settled, early=again | _figures(program, settled, marked))


def _phase_of_marks(marks: Marks) -> Phase | None:
    if not marks:
        return None
    return Phase.BACKWARD if marks[0] == TRANSPOSE else Phase.FORWARD


def _settled(program: FlatProgram, marked: Sequence[Phase | None]) -> list[Phase]:
    """Marks, and for the unmarked the values that they read."""
    late: set[Any] = set()
    phases = []
    for equation, mark in zip(program.equations, marked, strict=True):
        follows = any(variable in late for variable in equation.variables())
        if mark is None:
            phase = Phase.UPDATE if follows else Phase.FORWARD
        elif mark is Phase.BACKWARD and equation.in_user_remat and not follows and is_movable(equation.eqn):
            phase = Phase.FORWARD
        else:
            phase = mark
        phases.append(phase)
        if phase is not Phase.FORWARD and (follows or not _shows_slice(equation.eqn)):
            late.update(equation.eqn.outvars)
    return phases


def _shows_slice(eqn: Any) -> bool:
    """A slice or a device's part of what the forward pass made is there before the backward that goes through it."""
    return eqn.primitive.name in (SLICE, TO_SHARDS)


def _serving_update(program: FlatProgram, phases: list[Phase], marked: Sequence[Phase | None]) -> tuple[Phase, ...]:
    """Unmarked equations that only the update reads (step counts, learning rates) belong to the update."""
    readers: dict[Any, set[Phase]] = {}
    for position in reversed(range(len(phases))):
        equation = program.equations[position]
        read_by = set().union(*(readers.get(v, ()) for v in equation.eqn.outvars))
        if marked[position] is None and read_by == {Phase.UPDATE} and not equation.effects:
            phases[position] = Phase.UPDATE
        for variable in equation.variables():
            readers.setdefault(variable, set()).add(phases[position])
    return tuple(phases)


def _figures(program: FlatProgram, phases: Sequence[Phase], marked: Sequence[Phase | None]) -> dict[int, Phase]:
    """Unmarked equations after the gradient that make no more of forward values than these are (metrics).

    The compiler runs them in the forward pass, lest it keep logits for an accuracy; so does the graph.
    """
    figures: dict[int, Phase] = {}
    forward: set[Any] = set()
    start = phases.index(Phase.BACKWARD) if Phase.BACKWARD in phases else len(phases)
    for position, (equation, phase) in enumerate(zip(program.equations, phases, strict=True)):
        if phase is not Phase.FORWARD:
            continue
        if position > start and marked[position] is None and is_movable(equation.eqn):
            read_bytes = sum(aval_bytes(v.aval) for v in equation.variables() if v in forward)
            if read_bytes and read_bytes >= sum(aval_bytes(v.aval) for v in equation.eqn.outvars):
                figures[position] = Phase.FORWARD
        forward.update(equation.eqn.outvars)
    return figures


def is_movable(eqn: Any) -> bool:
    """Whether an equation may be computed elsewhere: no effects, no loop or branch, no part of an open loop's frame.

    The loops that a checkpoint computes again carry other results than the forward's, so merging does not find
    them; ahead of the backward they would do the work twice.
    """
    if _compat.lasting_effects(eqn.effects) or is_loop_boundary(eqn):
        return False
    opaque = kind_of(eqn.primitive.name) is Kind.OPAQUE
    return not (opaque and any(True for _ in jex.jaxprs_in_params(eqn.params)))


def phases_from_liveness(program: FlatProgram, size_bytes: Callable[[Any], int]) -> PhaseAssignment:
    """Splits the order where most bytes wait: what comes before is forward, what comes after backward.

    In a gradient the values that the backward reads again pile up until the loss, and the last one made is read
    first. A value waits at a split if it is read before and after it, but not by the equation that comes first;
    so gradients that wait for their update do not count.

    Args:
      program: No equation carries a mark.
      size_bytes: Bytes of a variable.

    Returns:
      The phases; none is update, which cannot be told from the backward.

    Raises:
      NoGradientError: Fewer than two values wait at the best split, they are not read last made first, or the only
        gradient is in the body of a loop or branch.
    """
    if _hidden_gradient(program) is not None:
        raise no_gradient(program, "no gradient at the step's own level")
    reads = _read_positions(program.equations)
    waiting_bytes = [0] * (len(program.equations) + 1)
    read_bytes = [0] * len(program.equations)
    for variable, positions in reads.items():
        waiting_bytes[positions[0] + 1] += size_bytes(variable)
        waiting_bytes[positions[-1] + 1] -= size_bytes(variable)
        for position in positions:
            read_bytes[position] += size_bytes(variable)
    totals = [a - b for a, b in zip(accumulate(waiting_bytes), read_bytes, strict=False)]
    split = max(range(len(totals)), key=totals.__getitem__, default=0)
    waiting = [p for p in reads.values() if p[0] < split < p[-1] and split not in p]
    if not _read_in_reverse([p[bisect_right(p, split)] for p in waiting]):
        raise no_gradient(program, "a program in which no two values wait for a backward pass")
    forward = (Phase.FORWARD,) * split
    return PhaseAssignment(phases=forward + (Phase.BACKWARD,) * (len(program.equations) - split))


def _read_in_reverse(reads: Sequence[int]) -> bool:
    """Whether values, in the order in which they were made, are mostly read in the opposite order.

    Counts the pairs of which the later one is read first.
    """
    seen: list[int] = []
    turned = 0
    for position in reads:
        turned += len(seen) - bisect_right(seen, position)
        insort(seen, position)
    return 4 * turned > len(reads) * (len(reads) - 1)


def _read_positions(equations: Sequence[Equation]) -> dict[Any, list[int]]:
    """For each variable that an equation makes, in that order, where it is read, ascending, each position once."""
    reads: dict[Any, list[int]] = {v: [] for equation in equations for v in equation.eqn.outvars}
    for position, equation in enumerate(equations):
        for variable in dict.fromkeys(equation.variables()):
            if variable in reads:
                reads[variable].append(position)
    return {variable: positions for variable, positions in reads.items() if positions}


def no_gradient(program: FlatProgram, found: str) -> NoGradientError:
    """The error for a step without a backward pass, with what to do about it."""
    hidden = _hidden_gradient(program)
    needed = "a step that calls jax.grad, jax.value_and_grad or jax.vjp at its own level"
    advice = "the function with the gradient in it, as you jit it: loss, backward and update together"
    if hidden is not None:
        found = f"a gradient inside a `{hidden}`, and none around it"
        advice = f"the body of that `{hidden}` as the step (with gradient accumulation: one microbatch)"
    return NoGradientError(
        "trace_step: the step has no backward pass, so there is nothing to save or to recompute.",
        got=f"{found} ({len(program.equations)} equations)",
        needed=needed,
        advice=advice,
        hidden_in=hidden,
    )


def _hidden_gradient(program: FlatProgram) -> str | None:
    """The primitive of a loop or branch with a backward pass in its body."""
    for equation in program.equations:
        if any(map(has_transpose, jex.jaxprs_in_params(equation.eqn.params))):
            return equation.eqn.primitive.name
    return None
