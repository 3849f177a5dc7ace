"""Steps of a schedule become equations of a jaxpr, one to one.

A `Run` is the equation of its op with other variables; where it is a copy, its name stack says so the way JAX's own
recomputation does, and what waits for something reads its literals behind a barrier with that. A `Barrier` is one
`optimization_barrier`; a pin of what products read as its shape says is one over a flat array, which lies no other
way. A `Move` is a `device_put` to another memory space, for TPUs to a row of an array there, or a sharding constraint.
References and tokens, which no barrier passes, keep their variable: nothing that reads them is ever computed again.

What is one device's own in the body of a `shard_map` waits in there with others of that body. A barrier that ties it to
what stands outside, or a move, is outside of the body, on the array of all devices' values.

Read after `jaxckpt.schedule.schedule`, `moves` and `stacks`.
"""

import functools
import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.core
import jax.extend.core as jex

from jaxckpt import _compat
from jaxckpt.ir import Kind, Op
from jaxckpt.ir.loop import SLICE
from jaxckpt.ir.scope import OWN, RECOMPUTED
from jaxckpt.program import Equation
from jaxckpt.program.open_shard_map import all_devices_var, from_shards, is_varying, to_shards, varying_axes_key
from jaxckpt.rewrite.host_stack import HostStacks
from jaxckpt.rewrite.moves import move_eqn, traced_eqn
from jaxckpt.schedule import Barrier, Move, Run, Schedule
from jaxckpt.schedule.layout_copies import read_in_default_layout
from jaxckpt.schedule.steps import Why
from jaxckpt.trace import Traced


def equations(traced: Traced, schedule: Schedule, *, stacked: bool = False) -> tuple[list[Equation], list[Any]]:
    """Builds the equations of a schedule.

    Args:
      traced: The step that the schedule is of.
      schedule: Its steps.
      stacked: As for `rewrite`; not on a mesh of several devices.

    Returns:
      The equations, each with its loop, and for each of `Traced.program.outvars` the variable or literal that is
      returned.
    """
    writer = _Emitter(traced, schedule, stacked=stacked and (traced.mesh is None or traced.mesh.size <= 1))
    for number, step in enumerate(schedule.steps):
        match step:
            case Run():
                writer.run(step)
            case Barrier():
                writer.barrier(step, number)
            case Move():
                writer.move(step, number)
    return writer.eqns, writer.results()


_Pass = tuple[int, int | None]
"""An instance that passes a barrier, and the one that it is behind it, if anybody reads it there."""


class _Emitter:
    def __init__(self, traced: Traced, schedule: Schedule, *, stacked: bool):
        self.eqns: list[Equation] = []
        self._traced = traced
        self._schedule = schedule
        self._ops = [equation.eqn for equation in traced.program.equations]
        self._variables: dict[int, Any] = dict(enumerate(traced.variables))
        self._as_shaped = frozenset[int]() if traced.graph.mesh else read_in_default_layout(traced.graph)
        """On a mesh flat arrays would have to be split anew."""
        self._lifted: set[int] = set()
        """Instances of a device's own values whose variable is the array of all devices' ones."""
        self._stacks = HostStacks(self._variables, schedule, stacked=stacked)

    def run(self, step: Run) -> None:
        eqn = self._ops[step.op]
        if step.is_clone:
            self._make(step.writes)
        reads = iter(step.reads)
        invars = [self._variables[next(reads)] if isinstance(atom, jex.Var) else atom for atom in eqn.invars]
        outvars = [self._variables[instance] for instance in step.writes]
        info = eqn.source_info
        if step.is_clone:
            info = info.replace(name_stack=self._again_stack(step, info.name_stack))
        manual = self._traced.program.equations[step.op].manual
        if step.after is not None and _can_pass(self._variables[step.after]) and self._can_wait(step.after, manual):
            invars = self._waiting(step, invars, manual)
        params = self._params(step, eqn)
        made = eqn.replace(invars=invars, outvars=outvars, source_info=info, params=params)
        self.eqns.append(Equation(made, loop=step.loop, manual=manual))

    def _can_wait(self, awaited: int, manual: int | None) -> bool:
        """Whether literals can pass a barrier with a value: in a body only with what is the same on all devices."""
        if self._manual(awaited) != manual or manual is None:
            return self._manual(awaited) == manual
        return not is_varying(self._traced.program.manuals[manual], self._variables[awaited])

    def _waiting(self, step: Run, literals: list[Any], manual: int | None) -> list[Any]:
        """The literals of an op behind a barrier with what it waits for; everybody after it goes on with that."""
        assert step.after is not None
        awaited = self._variables[step.after]
        passed = [jex.Var(atom.aval) for atom in (*literals, awaited)]
        eqn = _barrier_eqn("recompute", self._ops[step.op], [*literals, awaited], passed)
        self.eqns.append(Equation(eqn, loop=step.loop, manual=manual))
        *held, behind = passed
        self._stacks.renew(step.after, behind)
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
        trigger = None
        if step.trigger is not None and _can_pass(self._variables[step.trigger]):
            trigger = (step.trigger, step.trigger if self._holds_the_backward(step) else None)
        beside = self._beside(number, after=step.trigger is None)
        for together, manual in self._together(step, passing, trigger):
            self._bar(step, together, beside, manual)

    def _together(
        self, step: Barrier, passing: Sequence[_Pass], trigger: _Pass | None
    ) -> Iterator[tuple[Sequence[_Pass], int | None]]:
        """What can pass in one equation, and in which body: values of one kind, or outside of all bodies any.

        In the loop of a body there is no outside: those of a kind pass together, and what starts them if it is of it.
        """
        every = [*passing, *([] if trigger is None else [trigger])]
        kinds = {one: self._kind(one[0]) for one in every}
        if step.loop is not None and self._traced.program.loops[step.loop].manual is not None:
            for kind in dict.fromkeys(kinds[one] for one in passing):
                yield [one for one in every if kinds[one] == kind], kind[0]
            return
        yield every, (kinds[every[0]][0] if len(set(kinds.values())) == 1 else None)

    def _kind(self, instance: int) -> tuple[int | None, Hashable]:
        """What values must have in common to pass one barrier: the body, and the axes over which they differ."""
        manual = self._manual(instance)
        if manual is None:
            return None, None
        return manual, varying_axes_key(self._traced.program.manuals[manual], self._variables[instance])

    def _bar(self, step: Barrier, passing: Sequence[_Pass], beside: int, manual: int | None) -> None:
        seen = [self._seen(read, beside, step.loop, manual=manual) for read, _ in passing]
        behind = {variable: jex.Var(variable.aval) for variable in seen}
        invars, outvars = list(behind), list(behind.values())
        if step.why == "pin" and self._schedule.origin[step.reads[0]] in self._as_shaped:
            eqns = list(_flat_pin(self._ops[beside], invars[0], outvars[0]))
        else:
            eqns = [_barrier_eqn(step.why, self._ops[beside], invars, outvars)]
        ctx = self._ctx(beside, manual)
        self.eqns.extend(Equation(eqn.replace(ctx=ctx), loop=step.loop, manual=manual) for eqn in eqns)
        for (read, write), variable in zip(passing, seen, strict=True):
            if write is not None:
                self._show(read, write, behind[variable], beside, step.loop, manual=manual)

    def _manual(self, instance: int) -> int | None:
        """How devices run the body whose own an instance is; None where it is an array of all devices."""
        own = self._traced.graph.values[self._schedule.origin[instance]].local
        return self._home(instance) if own and instance not in self._lifted else None

    def _home(self, instance: int) -> int:
        """How devices run the body that makes an instance's value."""
        made = self._traced.graph.producer[self._schedule.origin[instance]]
        manual = None if made is None else self._traced.program.equations[made].manual
        assert manual is not None, "it is a body's own"
        return manual

    def _seen(self, instance: int, beside: int, loop: int | None, *, manual: int | None) -> Any:
        """The variable of an instance in a body, or outside of all: then that of all devices' values."""
        variable, own = self._variables[instance], self._manual(instance)
        if own == manual:
            return variable
        assert own is not None, "nothing is shown to a body but by the step itself"
        asked = self._traced.program.manuals[own]
        whole, spec = all_devices_var(asked, variable)
        self._join(from_shards(asked, variable, whole, spec, manual=own, loop=loop), beside)
        return whole

    def _show(self, read: int, write: int, variable: Any, beside: int, loop: int | None, *, manual: int | None) -> None:
        """Makes a variable the one of an instance; each device has its own of what was lifted."""
        own = self._manual(read)
        if read in self._lifted:
            self._lifted.add(write)
        if own == manual:
            self._variables[write] = variable
            self._stacks.passed(read, write)
            return
        assert own is not None, "only a body's own is lifted"
        self._lower(write, variable, own, beside, loop)

    def _lower(self, instance: int, whole: Any, manual: int, beside: int, loop: int | None) -> None:
        asked = self._traced.program.manuals[manual]
        self._make([instance])
        part = self._variables[instance]
        spec = all_devices_var(asked, part)[1]
        self._join(to_shards(asked, whole, part, spec, manual=manual, loop=loop), beside)

    def _join(self, joined: Equation, beside: int) -> None:
        """Adds an equation that leads in or out, named like the op beside it."""
        info = joined.eqn.source_info.replace(name_stack=self._ops[beside].source_info.name_stack)
        self.eqns.append(replace(joined, eqn=joined.eqn.replace(source_info=info)))

    def _ctx(self, beside: int, manual: int | None) -> Any:
        """The context of an equation beside an op, which may stand in a body where the op does not."""
        program = self._traced.program
        there = program.equations[beside].manual
        if there == manual:
            return self._ops[beside].ctx
        return program.manuals[there].eqn.ctx if manual is None else program.manuals[manual].inner_ctx

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
        near = self._beside(number, after=not step.restores)
        beside = self._ops[near]
        whole = self._traced.variables[self._schedule.origin[read]].aval
        split = self._traced.graph.values[self._schedule.origin[read]].split
        is_own = self._traced.graph.values[self._schedule.origin[read]].local
        moved = self._seen(read, near, step.loop, manual=None)
        if self._stacks.takes(step):
            eqns = self._stacks.move(step, moved)
        else:
            eqns = [move_eqn(step, moved, whole, self._traced.mesh, split)]
        names = beside.source_info.name_stack.extend(OWN).extend("load" if step.restores else "store")
        info, ctx = beside.source_info.replace(name_stack=names), self._ctx(near, None)
        made = (eqn.replace(source_info=info, ctx=ctx) for eqn in eqns)
        self.eqns.extend(Equation(eqn, loop=step.loop, is_pipelined=step.is_pipelined) for eqn in made)
        (moved,) = eqns[-1].outvars
        if is_own and step.restores:
            self._lower(write, moved, self._home(read), near, step.loop)
            return
        self._variables[write] = moved
        if is_own:
            self._lifted.add(write)

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
        later = (s for s in self._schedule.steps[number:] if isinstance(s, Run) and not s.is_clone)
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
    eqn = traced_eqn(lambda x: x.reshape(result.aval.shape), operand.aval)
    return _ours(eqn, "pin", beside, [operand], [result])


@functools.cache
def _barrier_template() -> Any:
    """An `optimization_barrier` equation, from the public function; its parameters are none."""
    return traced_eqn(jax.lax.optimization_barrier, jax.ShapeDtypeStruct((), "float32"))
