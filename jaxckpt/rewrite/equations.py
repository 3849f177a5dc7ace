"""Steps of a schedule become equations of a jaxpr, one to one.

A `Run` is the equation of its op with other variables; where it is a copy, its name stack says so the way JAX's own
recomputation does, and what waits for something reads its literals behind a barrier with that. A `Barrier` is one
`optimization_barrier`; a pin of what products read as its shape says is one over a flat array, which lies no other
way. A `Move` is a `device_put` to another memory space, or a sharding constraint. References and
tokens, which no barrier passes, keep their variable: nothing that reads them is ever computed again.

Read after `jaxckpt.ir.schedule` and `moves`.
"""

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.core
import jax.extend.core as jex

from jaxckpt import _compat
from jaxckpt.cost import read_as_shaped
from jaxckpt.ir import Barrier, Kind, Move, Op, Run, Schedule
from jaxckpt.ir.loop import SLICE
from jaxckpt.ir.scope import OWN, RECOMPUTED
from jaxckpt.ir.steps import Why
from jaxckpt.rewrite.moves import move_eqn
from jaxckpt.trace import Equation, Traced


def equations(traced: Traced, schedule: Schedule) -> tuple[list[Equation], list[Any]]:
    """Builds the equations of a schedule.

    Args:
      traced: The step that the schedule is of.
      schedule: Its steps.

    Returns:
      The equations, each with its loop, and for each of `Traced.program.outvars` the variable or literal that is
      returned.
    """
    writer = _Writer(traced, schedule)
    for number, step in enumerate(schedule.steps):
        match step:
            case Run():
                writer.run(step)
            case Barrier():
                writer.barrier(step, number)
            case Move():
                writer.move(step, number)
    return writer.eqns, writer.results()


class _Writer:
    def __init__(self, traced: Traced, schedule: Schedule):
        self.eqns: list[Equation] = []
        self._traced = traced
        self._schedule = schedule
        self._ops = [equation.eqn for equation in traced.program.equations]
        self._variables: dict[int, Any] = dict(enumerate(traced.variables))
        self._as_shaped = frozenset[int]() if traced.graph.mesh else read_as_shaped(traced.graph)
        """On a mesh flat arrays would have to be split anew."""

    def run(self, step: Run) -> None:
        eqn = self._ops[step.op]
        if step.again:
            self._make(step.writes)
        reads = iter(step.reads)
        invars = [self._variables[next(reads)] if isinstance(atom, jex.Var) else atom for atom in eqn.invars]
        outvars = [self._variables[instance] for instance in step.writes]
        info = eqn.source_info
        if step.again:
            info = info.replace(name_stack=self._again_stack(step, info.name_stack))
        if step.after is not None and _can_pass(self._variables[step.after]):
            invars = self._waiting(step, invars)
        params = self._params(step, eqn)
        made = eqn.replace(invars=invars, outvars=outvars, source_info=info, params=params)
        self.eqns.append(Equation(made, loop=step.loop))

    def _waiting(self, step: Run, literals: list[Any]) -> list[Any]:
        """The literals of an op behind a barrier with what it waits for; everybody after it goes on with that."""
        assert step.after is not None
        awaited = self._variables[step.after]
        passed = [jex.Var(atom.aval) for atom in (*literals, awaited)]
        beside = self._ops[step.op]
        self.eqns.append(Equation(_barrier_eqn("recompute", beside, [*literals, awaited], passed), loop=step.loop))
        *held, self._variables[step.after] = passed
        return held

    def _params(self, step: Run, eqn: Any) -> Any:
        """A slice that another loop has too is that loop's."""
        return dict(eqn.params, loop=step.loop) if eqn.primitive.name == SLICE else eqn.params

    def _again_stack(self, step: Run, stack: Any) -> Any:
        """Marked as a copy; one in another loop's body has the names of that loop before its own of the body."""
        home, loops = self._traced.graph.ops[step.op].loop, self._traced.program.loops
        if step.loop in (home, None):
            return _marked_again(stack)
        marks = _compat.name_stack_marks(stack)
        begin = max((i + 1 for i, (_, transformed) in enumerate(marks) if transformed), default=0)
        if home is not None:
            begin = _compat.common_names(loops[home].eqn.source_info.name_stack, stack)
        return loops[step.loop].eqn.source_info.name_stack.extend(RECOMPUTED) + stack[begin:]

    def barrier(self, step: Barrier, number: int) -> None:
        passing = [
            (read, write) for read, write in zip(step.reads, step.writes, strict=True) if self._passes(read, write)
        ]
        if not passing:
            return
        invars = [self._variables[read] for read, _ in passing]
        outvars = [jex.Var(variable.aval) for variable in invars]
        self._variables.update(zip((write for _, write in passing), outvars, strict=True))
        if step.trigger is not None and _can_pass(self._variables[step.trigger]):
            invars.append(self._variables[step.trigger])
            outvars.append(jex.Var(invars[-1].aval))
            if self._holds_the_backward(step):
                self._variables[step.trigger] = outvars[-1]
        beside = self._ops[self._beside(number, after=step.trigger is None)]
        if step.why == "pin" and self._schedule.origin[step.reads[0]] in self._as_shaped:
            self.eqns.extend(Equation(eqn, loop=step.loop) for eqn in _flat_pin(beside, invars[0], outvars[0]))
        else:
            self.eqns.append(Equation(_barrier_eqn(step.why, beside, invars, outvars), loop=step.loop))

    def _holds_the_backward(self, step: Barrier) -> bool:
        """Whether the backward goes on with what has passed the barrier.

        XLA drops operands of a barrier that nobody reads behind it. One device's scheduler mostly computes again late
        all the same, so what is only rearranged, and not from a product, need not be in memory for it; that of several
        devices moves copies forward, to hide exchanges behind them.
        """
        graph = self._traced.graph
        made = None if step.trigger is None else graph.producer[self._schedule.origin[step.trigger]]
        if made is None or graph.ops[made].loop != step.loop:
            return False
        return bool(graph.mesh) or not self._only_rearranges(graph.ops[made])

    def _only_rearranges(self, op: Op) -> bool:
        """Whether an op turns around what something else than a product made."""
        graph = self._traced.graph
        sizes_bytes = {graph.values[v].size_bytes for v in (*op.reads, *op.writes)}
        makers = (graph.producer[v] for v in op.reads)
        from_product = any(maker is not None and graph.ops[maker].kind is Kind.CONTRACTION for maker in makers)
        return op.kind is Kind.VIEW and len(sizes_bytes) == 1 and not from_product

    def move(self, step: Move, number: int) -> None:
        (read,), (write,) = step.reads, step.writes
        beside = self._ops[self._beside(number, after=not step.back)]
        whole = self._traced.variables[self._schedule.origin[read]].aval
        split = self._traced.graph.values[self._schedule.origin[read]].split
        eqn = move_eqn(step, self._variables[read], whole, self._traced.mesh, split)
        stack = beside.source_info.name_stack.extend(OWN).extend("fetch" if step.back else "leave")
        made = eqn.replace(source_info=beside.source_info.replace(name_stack=stack), ctx=beside.ctx)
        self.eqns.append(Equation(made, loop=step.loop, ahead=step.ahead))
        self._variables[write] = made.outvars[0]

    def results(self) -> list[Any]:
        """The schedule returns values only; literals of the step's results go back to their places."""
        returned = iter(self._schedule.outputs)
        return [
            self._variables[next(returned)] if isinstance(atom, jex.Var) else atom
            for atom in self._traced.program.outvars
        ]

    def _make(self, instances: Sequence[int]) -> None:
        for instance in instances:
            aval = self._traced.variables[self._schedule.origin[instance]].aval
            self._variables[instance] = jex.Var(aval)

    def _passes(self, read: int, write: int) -> bool:
        """Whether a value goes through the barrier; one that cannot is passed on as it is."""
        if _can_pass(self._variables[read]):
            return True
        self._variables[write] = self._variables[read]
        return False

    def _beside(self, number: int, *, after: bool) -> int:
        """A pin follows its maker; the barrier of a stage comes before the first op that is no copy."""
        step = self._schedule.steps[number]
        if after:
            made = self._traced.graph.producer[self._schedule.origin[step.reads[0]]]
            if made is not None:
                return made
        later = (s for s in self._schedule.steps[number:] if isinstance(s, Run) and not s.again)
        return next(later).op


def _can_pass(variable: Any) -> bool:
    """Arrays of any type pass a barrier, key arrays and empty ones too; references and tokens do not."""
    return isinstance(variable.aval, jax.core.ShapedArray)


def _marked_again(name_stack: Any) -> Any:
    """The stack with the mark of recomputation behind the outermost name under the transformations."""
    marks = _compat.name_stack_marks(name_stack)
    last = max((i for i, (_, transformed) in enumerate(marks) if transformed), default=-1)
    head = min(last + 2, len(marks))
    return name_stack[:head].extend(RECOMPUTED) + name_stack[head:]


def _barrier_eqn(why: Why, beside: Any, invars: list[Any], outvars: list[Any]) -> Any:
    return _ours(_barrier_template(), why, beside, invars, outvars)


def _ours(template: Any, why: Why, beside: Any, invars: list[Any], outvars: list[Any]) -> Any:
    """Named and placed like the op beside it: what made the pinned value, or what asked for the stage."""
    info = beside.source_info.replace(name_stack=beside.source_info.name_stack.extend(OWN).extend(why))
    return template.replace(invars=invars, outvars=outvars, source_info=info, ctx=beside.ctx)


def _flat_pin(beside: Any, pinned: Any, held: Any) -> Iterator[Any]:
    """A pin over a flat array: a reshape, the barrier, and a reshape back."""
    flat = jax.core.ShapedArray((math.prod(pinned.aval.shape),), pinned.aval.dtype)
    before, behind = jex.Var(flat), jex.Var(flat)
    yield _reshape_eqn(beside, pinned, before)
    yield _barrier_eqn("pin", beside, [before], [behind])
    yield _reshape_eqn(beside, behind, held)


def _reshape_eqn(beside: Any, operand: Any, result: Any) -> Any:
    aval = operand.aval
    closed = jax.make_jaxpr(lambda x: x.reshape(result.aval.shape))(jax.ShapeDtypeStruct(aval.shape, aval.dtype))
    (eqn,) = closed.jaxpr.eqns
    return _ours(eqn, "pin", beside, [operand], [result])


@functools.cache
def _barrier_template() -> Any:
    """An `optimization_barrier` equation, from the public function; its parameters are none."""
    closed = jax.make_jaxpr(jax.lax.optimization_barrier)(jax.ShapeDtypeStruct((), "float32"))
    return getattr(closed, "jaxpr", closed).eqns[0]
