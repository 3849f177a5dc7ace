"""The phase of every equation, from the marks that differentiation leaves in the name stack.

1. The outermost mark decides: `transpose(` is backward, `jvp(` outside any transpose is forward. So a gradient inside
   the loss (`jvp(transpose(jvp(...)))`) belongs to the forward pass of the outer one.
2. An equation without a mark is update if it follows from the backward pass or only such equations read it; else it is
   forward.
3. A forward-over-reverse product puts one more `jvp(` around everything; marks are then read below it.
4. Without any marks (a backward written by hand, names stripped) the order is split by liveness, at the point where
   most bytes are live: `phases_from_liveness`.

Then forward equations are moved out of the backward pass, back to the forward pass (`move_to_forward`). Some clones of
a user's checkpoint have no original after common subexpression elimination: residuals that only the backward pass needs
(a mask, a derivative's factor). Without the checkpoint JAX would compute them in the forward pass. So each is moved to
just behind the equations that it reads, under the forward's name stack, and the graph is that of the step without
checkpoints. Metrics that the user computes from forward values after the gradient are moved as well.
"""

from bisect import bisect_right, insort
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import accumulate

import jax.extend.core as jex

from jaxckpt import _compat
from jaxckpt._errors import NoGradientError
from jaxckpt.ir import Kind, Phase, kind_of
from jaxckpt.ir.regions import SLICE, TO_SHARDS
from jaxckpt.ir.scope import JVP, TRANSPOSE
from jaxckpt.program.flat_program import Equation, FlatProgram, forward_name_stack, renamed
from jaxckpt.program.open_loops import Visibility, has_transpose, is_loop_boundary
from jaxckpt.trace.sharding import aval_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseAssignment:
    """The phases of a program's equations, and positions of forward equations behind the start of the backward pass.

    These `displaced` ones read nothing of it: clones of the user's checkpoint, and metrics computed from forward values
    after the gradient. Each comes with the phase that it has if it is not moved.
    """

    phases: tuple[Phase, ...]
    displaced: Mapping[int, Phase] = field(default_factory=dict)


def phases_from_marks(program: FlatProgram) -> PhaseAssignment | None:
    """The phase of each equation by marks in its name stack; None without marks, an error without a transpose."""
    marked = _marked_phases(program)
    if marked is None:
        return None
    phases = _with_serving_update(program, _with_unmarked(program, marked), marked)
    clones = {
        position: Phase.BACKWARD
        for position, (phase, mark) in enumerate(zip(phases, marked, strict=True))
        if phase is Phase.FORWARD and mark is Phase.BACKWARD
    }
    return PhaseAssignment(phases=phases, displaced=clones | _metrics(program, phases, marked))


def _marked_phases(program: FlatProgram) -> list[Phase | None] | None:
    """The phase that each equation's outermost mark gives; None where no equation carries a mark."""
    stacks = [_compat.name_stack_marks(e.eqn.source_info.name_stack) for e in program.equations]
    transforms = [tuple(mark for mark in stack if mark in (JVP, TRANSPOSE)) for stack in stacks]
    if not any(transforms):
        return None
    depths = [marks.index(TRANSPOSE) for marks in transforms if TRANSPOSE in marks]
    if not depths:
        raise no_gradient(program, "equations marked by differentiation, but none of a backward pass")
    phases = {(): None, (TRANSPOSE,): Phase.BACKWARD, (JVP,): Phase.FORWARD}
    first = min(depths)
    return [phases[marks[first : first + 1]] for marks in transforms]


def _with_unmarked(program: FlatProgram, marked: Sequence[Phase | None]) -> list[Phase]:
    """The phases by marks; for unmarked equations, and early clones, by the values that they read."""
    after_forward: set[jex.Var] = set()
    phases = []
    for equation, mark in zip(program.equations, marked, strict=True):
        follows = not after_forward.isdisjoint(equation.variables())
        phase = _phase_of(equation, mark, follows=follows)
        phases.append(phase)
        # A slice, or a device's shard, of a forward value is available before the backward loop or body that reads it.
        is_part = equation.eqn.primitive.name in (SLICE, TO_SHARDS)
        if phase is not Phase.FORWARD and (follows or not is_part):
            after_forward.update(equation.eqn.outvars)
    return phases


def _phase_of(equation: Equation, mark: Phase | None, *, follows: bool) -> Phase:
    """The phase of an equation that follows from the backward pass, or does not."""
    if mark is None:
        return Phase.UPDATE if follows else Phase.FORWARD
    is_forward_clone = equation.in_user_remat and not follows and is_movable(equation.eqn)
    return Phase.FORWARD if mark is Phase.BACKWARD and is_forward_clone else mark


def _with_serving_update(
    program: FlatProgram, phases: list[Phase], marked: Sequence[Phase | None]
) -> tuple[Phase, ...]:
    """Unmarked equations that only the update reads (step counts, learning rates) belong to the update."""
    readers: dict[jex.Var, set[Phase]] = {}
    for position in reversed(range(len(phases))):
        equation = program.equations[position]
        read_by = set().union(*(readers.get(v, ()) for v in equation.eqn.outvars))
        if marked[position] is None and read_by == {Phase.UPDATE} and not equation.effects:
            phases[position] = Phase.UPDATE
        for variable in equation.variables():
            readers.setdefault(variable, set()).add(phases[position])
    return tuple(phases)


def _metrics(program: FlatProgram, phases: Sequence[Phase], marked: Sequence[Phase | None]) -> dict[int, Phase]:
    """Unmarked equations after the gradient whose results are no larger than the forward values that they read.

    The compiler runs them in the forward pass, lest it keep logits for an accuracy; so does the graph.
    """
    found: dict[int, Phase] = {}
    forward: set[jex.Var] = set()
    start = phases.index(Phase.BACKWARD) if Phase.BACKWARD in phases else len(phases)
    for position, (equation, phase) in enumerate(zip(program.equations, phases, strict=True)):
        if phase is not Phase.FORWARD:
            continue
        is_behind = position > start and marked[position] is None
        if is_behind and is_movable(equation.eqn) and _shrinks(equation, forward):
            found[position] = Phase.FORWARD
        forward.update(equation.eqn.outvars)
    return found


def _shrinks(equation: Equation, forward: Set[jex.Var]) -> bool:
    """True if an equation reads forward values, and its results take no more bytes than those."""
    read_bytes = sum(aval_bytes(v.aval) for v in equation.variables() if v in forward)
    return 0 < read_bytes >= sum(aval_bytes(v.aval) for v in equation.eqn.outvars)


def is_movable(eqn: jex.JaxprEqn) -> bool:
    """True if an equation may be computed at another place: no effects, no loop or branch, no boundary of an open loop.

    The loops that a checkpoint recomputes carry other results than the forward's, so common subexpression elimination
    does not find them; moved before the backward pass they would do the work twice.
    """
    if _compat.lasting_effects(eqn.effects) or is_loop_boundary(eqn):
        return False
    opaque = kind_of(eqn.primitive.name) is Kind.OPAQUE
    return not (opaque and any(True for _ in jex.jaxprs_in_params(eqn.params)))


def phases_from_liveness(program: FlatProgram) -> PhaseAssignment:
    """Splits the order where most bytes are live: equations before are forward, those after backward, none is update.

    In a gradient the residuals pile up until the loss, and the last one computed is read first. A value counts at a
    split if equations before and after the split read it, but not the first one after; so gradients that are live until
    the update do not count. It is an error where fewer than two values are live at the best split, where they are not
    read in reverse order, and where the only gradient is in the body of a loop or branch.
    """
    if _equation_with_gradient(program) is not None:
        raise no_gradient(program, "no gradient at the step's own level")
    reads = _read_positions(program.equations)
    change_bytes = [0] * (len(program.equations) + 1)
    read_bytes = [0] * len(program.equations)
    for variable, positions in reads.items():
        size_bytes = aval_bytes(variable.aval)
        change_bytes[positions[0] + 1] += size_bytes
        change_bytes[positions[-1] + 1] -= size_bytes
        for position in positions:
            read_bytes[position] += size_bytes
    live_bytes = [a - b for a, b in zip(accumulate(change_bytes), read_bytes, strict=False)]
    split = max(range(len(live_bytes)), key=live_bytes.__getitem__, default=0)
    live = [p for p in reads.values() if p[0] < split < p[-1] and split not in p]
    if not _read_in_reverse([p[bisect_right(p, split)] for p in live]):
        raise no_gradient(program, "a program without two residuals that a backward pass reads in reverse order")
    forward = (Phase.FORWARD,) * split
    return PhaseAssignment(phases=forward + (Phase.BACKWARD,) * (len(program.equations) - split))


def _read_in_reverse(reads: Sequence[int]) -> bool:
    """True if values are mostly read in the opposite order of their computation, by a count of inversions."""
    seen: list[int] = []
    inversions = 0
    for position in reads:
        inversions += len(seen) - bisect_right(seen, position)
        insort(seen, position)
    return 4 * inversions > len(reads) * (len(reads) - 1)


def _read_positions(equations: Sequence[Equation]) -> dict[jex.Var, list[int]]:
    """For each result that is read, in order, the positions of its readers, ascending, each once."""
    reads: dict[jex.Var, list[int]] = {v: [] for equation in equations for v in equation.eqn.outvars}
    for position, equation in enumerate(equations):
        for variable in dict.fromkeys(equation.variables()):
            if variable in reads:
                reads[variable].append(position)
    return {variable: positions for variable, positions in reads.items() if positions}


def no_gradient(program: FlatProgram, found: str) -> NoGradientError:
    """The error for a step without a backward pass, with advice."""
    hidden = _equation_with_gradient(program)
    name = None if hidden is None else hidden.primitive.name
    needed = "jax.grad, jax.value_and_grad or jax.vjp at the step's own level, and results that depend on the gradients"
    advice = "the function as you jit it: loss, backward and update, with the new state among its results"
    if hidden is not None:
        found = f"a gradient inside a `{name}`, and none around it"
        advice = f"the body of that `{name}` as the step (with gradient accumulation: one microbatch)"
        if effects := _compat.lasting_effects(hidden.effects):
            found = f"a gradient inside a `{name}` with effects ({', '.join(sorted(map(str, effects)))})"
            advice = f"the `{name}` without jax.debug.print, callbacks and references: with effects it stays as it is"
    return NoGradientError(
        "no backward pass was found in the step, so there is nothing to save or to recompute.",
        got=f"{found} ({len(program.equations)} equations)",
        needed=needed,
        advice=advice,
        hidden_in=name,
    )


def _equation_with_gradient(program: FlatProgram) -> jex.JaxprEqn | None:
    """The first equation with a backward pass in its body."""
    eqns = (equation.eqn for equation in program.equations)
    return next((eqn for eqn in eqns if any(map(has_transpose, jex.jaxprs_in_params(eqn.params)))), None)


### Moving to the forward pass


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
