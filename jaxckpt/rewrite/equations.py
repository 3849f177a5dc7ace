"""Equations of a schedule: its steps become equations of a jaxpr, one to one.

1. A `Run` is the equation of its op with other variables. A clone has the name stack of JAX's own recomputation, and
   where it has to come after something it reads its literals behind a barrier with that.
2. A `Barrier` is one `optimization_barrier`; a pin of an array that products read in its default layout is one over the
   flat array, which has no other layout. What each product would copy for itself passes such a barrier at once.
3. A `Move` is a `device_put` to another memory space, for TPUs to a row of an array there, or a sharding constraint.

References and tokens, which no barrier passes, keep their variable: nothing that reads them is ever recomputed.

A device's own value in the body of a `shard_map` passes barriers in there, with others of that body. A barrier that
ties it to values outside, or a move, is outside of the body, on the array of all devices' values.
"""

import functools
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.core
import jax.extend.core as jex
import jax.numpy as jnp
from jax.extend.source_info_util import NameStack

from jaxckpt import _compat
from jaxckpt.ir.kind import POOLING_GRADIENT
from jaxckpt.ir.regions import FROM_SHARDS, SLICE, TO_SHARDS
from jaxckpt.ir.scope import OWN, RECOMPUTED
from jaxckpt.program import Equation
from jaxckpt.program.flat_program import Atom, traced_eqns, with_name_stack
from jaxckpt.program.open_shard_map import all_devices_var, is_varying, shard_boundary, varying_axes_key
from jaxckpt.rewrite.flat_residual_stacks import FlatResidualStacks, read_in_other_loops
from jaxckpt.rewrite.moves import HostStacks, move_eqn
from jaxckpt.schedule import Barrier, Move, Run, Schedule
from jaxckpt.schedule.initialisers import only_added
from jaxckpt.schedule.layout import copied_for_each_product, read_in_default_layout
from jaxckpt.trace import Traced


def equations(traced: Traced, schedule: Schedule, *, for_tpu: bool = False) -> tuple[list[Equation], list[Atom]]:
    """The equations of a schedule, each with its loop, and the results; `for_tpu` as for `rewrite`."""
    emitter = _Emitter(traced, schedule, for_tpu=for_tpu)
    for number, step in enumerate(schedule.steps):
        match step:
            case Run():
                emitter.run(step)
            case Barrier():
                emitter.barrier(step, number)
            case Move():
                emitter.move(step, number)
    return emitter.eqns, emitter.results()


_Pass = tuple[int, int | None]
"""An instance that passes a barrier, and the one that stands for it behind, if anybody reads it there."""


class _Emitter:
    def __init__(self, traced: Traced, schedule: Schedule, *, for_tpu: bool):
        self.eqns: list[Equation] = []
        self._traced = traced
        self._schedule = schedule
        self._ops = [equation.eqn for equation in traced.program.equations]
        self._variables: dict[int, jex.Var] = dict(enumerate(traced.variables))
        self._has_clones = any(isinstance(step, Run) and step.is_clone for step in schedule.steps)
        self._as_shaped, self._copied = frozenset[int](), frozenset[int]()
        """Values that products read in their default layout if they are pinned, and those that they would copy."""
        if not traced.graph.mesh:  # flat arrays would have to be resharded
            self._as_shaped = read_in_default_layout(traced.graph)
            self._copied = copied_for_each_product(traced.graph) if self._has_clones and not for_tpu else self._copied
        self._lifted: set[int] = set()
        """Instances of a device's own values whose variable is the array of all devices' values."""
        apart = {*traced.graph.inputs, *traced.graph.outputs}
        on_one_device = traced.mesh is None or traced.mesh.size <= 1
        self._stacks = HostStacks(self._variables, schedule, stacked=for_tpu and on_one_device, apart=apart)
        has_flat_stacks = self._has_clones and not traced.graph.mesh and not for_tpu
        flat = read_in_other_loops(traced.graph, schedule) if has_flat_stacks else {}
        self._flat_stacks = FlatResidualStacks(traced.graph, flat, self.eqns)

    def run(self, step: Run) -> None:
        eqn = self._ops[step.op]
        if step.is_clone:
            self._new_variables(step.writes)
        reads = iter(step.reads)
        invars = [self._operand(next(reads), step) if isinstance(atom, jex.Var) else atom for atom in eqn.invars]
        outvars = [self._variables[instance] for instance in step.writes]
        info = eqn.source_info
        if step.is_clone:
            info = info.replace(name_stack=self._clone_stack(step, info.name_stack))
        manual = self._traced.program.equations[step.op].manual
        if step.after is not None and _can_pass(self._variables[step.after]) and self._can_wait(step.after, manual):
            invars = self._literals_behind(step, invars, manual)
        # A slice in another loop is of that loop.
        params = dict(eqn.params, loop=step.loop) if eqn.primitive.name == SLICE else eqn.params
        written = eqn.replace(invars=invars, outvars=outvars, source_info=info, params=params)
        if eqn.primitive.name == POOLING_GRADIENT and manual is None and self._begins_with_zeros(step.op):
            self.eqns += [Equation(each, loop=step.loop) for each in _pooling_gradient(eqn, invars, outvars[0])]
        else:
            self.eqns.append(Equation(written, loop=step.loop, manual=manual))
        self._flat_stacks.flatten(step, written)
        if len(outvars) == 1 and self._schedule.origin[step.writes[0]] in self._copied and manual is None:
            self._variables[step.writes[0]] = behind = jex.Var(outvars[0].aval)
            self.eqns += [Equation(each, loop=step.loop) for each in _flat_pin(written, outvars[0], behind, "layout")]

    def _operand(self, instance: int, step: Run) -> jex.Var:
        """The variable of an instance that an op reads."""
        return self._flat_stacks.operand(instance, self._variables[instance], step, self._ops[step.op])

    def _begins_with_zeros(self, op: int) -> bool:
        """True if zeros of a pooling's gradient have to be kept from being early: XLA scatters into an addend."""
        graph = self._traced.graph
        return self._has_clones and only_added(graph, graph.ops[op].writes[0]) is None

    def _can_wait(self, awaited: int, manual: int | None) -> bool:
        """True if literals can pass a barrier with a value: in a body only if all devices have the same value."""
        if self._manual(awaited) != manual or manual is None:
            return self._manual(awaited) == manual
        return not is_varying(self._traced.program.manuals[manual], self._variables[awaited])

    def _literals_behind(self, step: Run, literals: list[Atom], manual: int | None) -> list[jex.Var]:
        """The literals of an op behind a barrier with an instance, which later steps read behind it too."""
        assert step.after is not None
        awaited = self._variables[step.after]
        passed = [jex.Var(atom.aval) for atom in (*literals, awaited)]
        eqn = _named(_barrier_template(), "recompute", self._ops[step.op], [*literals, awaited], passed)
        self.eqns.append(Equation(eqn, loop=step.loop, manual=manual))
        *held, behind = passed
        self._stacks.renew(step.after, behind)
        return held

    def _clone_stack(self, step: Run, stack: NameStack) -> NameStack:
        """The name stack of a clone; in another loop's body it has the names of that loop before its own ones."""
        home, loops = self._traced.graph.ops[step.op].loop, self._traced.program.loops
        if step.loop in (home, None):
            return _marked_recomputed(stack)
        marks = _compat.name_stack_marks(stack)
        begin = max((i + 1 for i, (_, transformed) in enumerate(marks) if transformed), default=0)
        if home is not None:
            begin = _compat.common_names(loops[home].eqn.source_info.name_stack, stack)
        return loops[step.loop].eqn.source_info.name_stack.extend(RECOMPUTED) + stack[begin:]

    def barrier(self, step: Barrier, number: int) -> None:
        passing: list[_Pass] = []
        for read, write in zip(step.reads, step.writes, strict=True):
            if _can_pass(self._variables[read]):
                passing.append((read, write))
            else:
                self._variables[write] = self._variables[read]
        if not passing:
            return
        trigger = None
        if step.trigger is not None and _can_pass(self._variables[step.trigger]):
            trigger = (step.trigger, step.trigger if self._holds_the_backward(step) else None)
        near = self._near(number, after=not step.is_in_backward)
        for together, manual in self._barriers(step, passing, trigger):
            self._add_barrier(step, together, near, manual)

    def _barriers(
        self, step: Barrier, passing: Sequence[_Pass], trigger: _Pass | None
    ) -> Iterator[tuple[Sequence[_Pass], int | None]]:
        """The values of each barrier equation, with its body: values of one kind, or outside of all bodies any.

        In the loop of a body there is no outside: values of one kind pass together, and so does a trigger of that kind.
        """
        every = [*passing, *([] if trigger is None else [trigger])]
        kinds = {one: self._kind(one[0]) for one in every}
        if step.loop is not None and self._traced.program.loops[step.loop].manual is not None:
            for kind in dict.fromkeys(kinds[one] for one in passing):
                yield [one for one in every if kinds[one] == kind], kind[0]
            return
        yield every, (kinds[every[0]][0] if len(set(kinds.values())) == 1 else None)

    def _kind(self, instance: int) -> tuple[int | None, Hashable]:
        """The body of a value and the axes over which it differs, which values of one barrier have in common."""
        manual = self._manual(instance)
        if manual is None:
            return None, None
        return manual, varying_axes_key(self._traced.program.manuals[manual], self._variables[instance])

    def _add_barrier(self, step: Barrier, passing: Sequence[_Pass], near: int, manual: int | None) -> None:
        before = [self._variable_in(read, near, step.loop, manual=manual) for read, _ in passing]
        behind = {variable: jex.Var(variable.aval) for variable in before}
        invars, outvars = list(behind), list(behind.values())
        if step.why == "pin" and self._schedule.origin[step.reads[0]] in self._as_shaped:
            eqns = list(_flat_pin(self._ops[near], invars[0], outvars[0], step.why))
        else:
            eqns = [_named(_barrier_template(), step.why, self._ops[near], invars, outvars)]
        ctx = self._ctx(near, manual)
        self.eqns.extend(Equation(eqn.replace(ctx=ctx), loop=step.loop, manual=manual) for eqn in eqns)
        for (read, write), variable in zip(passing, before, strict=True):
            if write is not None:
                self._set_behind(read, write, behind[variable], near, step.loop, manual=manual)

    def _manual(self, instance: int) -> int | None:
        """The mesh of the body whose own value an instance is, by position; None for an array of all devices."""
        own = self._traced.graph.values[self._schedule.origin[instance]].local
        return self._home(instance) if own and instance not in self._lifted else None

    def _home(self, instance: int) -> int:
        """The mesh of the body that makes an instance's value, by position."""
        producer = self._producer(instance)
        manual = None if producer is None else self._traced.program.equations[producer].manual
        assert manual is not None, "the value is a body's own"
        return manual

    def _variable_in(self, instance: int, near: int, loop: int | None, *, manual: int | None) -> jex.Var:
        """The variable of an instance in a body, or outside of all: then that of all devices' values."""
        variable, own = self._variables[instance], self._manual(instance)
        if own == manual:
            return variable
        assert own is not None, "only the step itself leads arrays into a body"
        mesh = self._traced.program.manuals[own]
        array, spec = all_devices_var(mesh, variable)
        self._add_boundary(shard_boundary(mesh, FROM_SHARDS, variable, array, spec, manual=own, loop=loop), near)
        return array

    def _set_behind(
        self, read: int, write: int, variable: jex.Var, near: int, loop: int | None, *, manual: int | None
    ) -> None:
        """Makes a variable the one of an instance behind a barrier; of an array of all devices a body has its part."""
        own = self._manual(read)
        if read in self._lifted:
            self._lifted.add(write)
        if own == manual:
            self._variables[write] = variable
            self._stacks.passed(read, write)
            return
        assert own is not None, "only a body's own value is lifted"
        self._lower(write, variable, own, near, loop)

    def _lower(self, instance: int, array: jex.Var, manual: int, near: int, loop: int | None) -> None:
        """Makes each device's part of an array the variable of an instance."""
        mesh = self._traced.program.manuals[manual]
        self._new_variables([instance])
        part = self._variables[instance]
        spec = all_devices_var(mesh, part)[1]
        self._add_boundary(shard_boundary(mesh, TO_SHARDS, array, part, spec, manual=manual, loop=loop), near)

    def _add_boundary(self, boundary: Equation, near: int) -> None:
        """Adds an equation that leads into a body or out of it, with the names of an op."""
        named = with_name_stack(boundary.eqn, self._ops[near].source_info.name_stack)
        self.eqns.append(replace(boundary, eqn=named))

    def _ctx(self, near: int, manual: int | None) -> Any:
        """The context of an equation with the source of an op that may be of another body."""
        program = self._traced.program
        home = program.equations[near].manual
        if home == manual:
            return self._ops[near].ctx
        return program.manuals[home].eqn.ctx if manual is None else program.manuals[manual].inner_ctx

    def _holds_the_backward(self, step: Barrier) -> bool:
        """True if the backward goes on with the trigger behind the barrier: XLA drops operands that nobody reads there.

        A rearranged array passes too: for layout assignment a transpose is a bitcast, and clones of a barrier that lost
        its trigger start at once, random bits of all stages together.
        """
        producer = None if step.trigger is None else self._producer(step.trigger)
        return producer is not None and self._traced.graph.ops[producer].loop == step.loop

    def move(self, step: Move, number: int) -> None:
        (read,), (write,) = step.reads, step.writes
        near = self._near(number, after=not step.restores)
        like = self._ops[near]
        value = self._traced.graph.values[self._schedule.origin[read]]
        moved = self._variable_in(read, near, step.loop, manual=None)
        if self._stacks.takes(step):
            eqns = self._stacks.move(step, moved)
        else:
            aval = self._traced.variables[self._schedule.origin[read]].aval
            eqns = [move_eqn(step, moved, aval, self._traced.mesh, value.split)]
        names = like.source_info.name_stack.extend(OWN).extend("load" if step.restores else "store")
        info, ctx = like.source_info.replace(name_stack=names), self._ctx(near, None)
        named = (eqn.replace(source_info=info, ctx=ctx) for eqn in eqns)
        self.eqns.extend(Equation(eqn, loop=step.loop, is_pipelined=step.is_pipelined) for eqn in named)
        (moved,) = eqns[-1].outvars
        if value.local and step.restores:
            self._lower(write, moved, self._home(read), near, step.loop)
            return
        self._variables[write] = moved
        if value.local:
            self._lifted.add(write)

    def results(self) -> list[Atom]:
        """The results of the step: the schedule returns values only, literals go back to their places."""
        returned = iter(self._schedule.outputs)
        return [
            self._variables[next(returned)] if isinstance(atom, jex.Var) else atom
            for atom in self._traced.program.outvars
        ]

    def _new_variables(self, instances: Sequence[int]) -> None:
        for instance in instances:
            aval = self._traced.variables[self._schedule.origin[instance]].aval
            self._variables[instance] = jex.Var(aval)

    def _producer(self, instance: int) -> int | None:
        return self._traced.graph.producer[self._schedule.origin[instance]]

    def _near(self, number: int, *, after: bool) -> int:
        """The op whose source a step's equations have: the producer, or the first op afterwards that is no clone."""
        step = self._schedule.steps[number]
        producer = self._producer(step.reads[0]) if after else None
        if producer is not None:
            return producer
        later = (s for s in self._schedule.steps[number:] if isinstance(s, Run) and not s.is_clone)
        return next(later).op


def _can_pass(variable: jex.Var) -> bool:
    """True for arrays of any type, key arrays and empty ones too; references and tokens pass no barrier."""
    return isinstance(variable.aval, jax.core.ShapedArray)


def _marked_recomputed(name_stack: NameStack) -> NameStack:
    """The stack with the mark of recomputation behind the outermost name under the transformations."""
    marks = _compat.name_stack_marks(name_stack)
    last = max((i for i, (_, transformed) in enumerate(marks) if transformed), default=-1)
    head = min(last + 2, len(marks))
    return name_stack[:head].extend(RECOMPUTED) + name_stack[head:]


def _named(
    template: jex.JaxprEqn, why: str, like: jex.JaxprEqn, invars: list[Atom], outvars: list[jex.Var]
) -> jex.JaxprEqn:
    """An equation of ours, with a purpose in its name stack and else the source of an op."""
    info = like.source_info.replace(name_stack=like.source_info.name_stack.extend(OWN).extend(why))
    return template.replace(invars=invars, outvars=outvars, source_info=info, ctx=like.ctx)


def _flat_pin(like: jex.JaxprEqn, pinned: jex.Var, held: jex.Var, why: str) -> Iterator[jex.JaxprEqn]:
    """A pin over a flat array: a reshape, the barrier, and a reshape back."""
    shape = pinned.aval.shape
    eqns = traced_eqns(lambda x: jax.lax.optimization_barrier(x.reshape(-1)).reshape(shape), [pinned], held)
    return (_named(eqn, why, like, eqn.invars, eqn.outvars) for eqn in eqns)


def _pooling_gradient(pooling: jex.JaxprEqn, operands: Sequence[Atom], result: jex.Var) -> Iterator[jex.JaxprEqn]:
    """The gradient of a maximum over windows, of a zero that has passed a barrier with the cotangent.

    XLA scatters that gradient into zeros. They are one constant with the zeros of other ops, such as those of a relu of
    the same shape, and are then in memory from the first of these ops on, and copied before the scatter.
    """

    def gradient(cotangent: jax.Array, pooled: jax.Array) -> jax.Array:
        zero, cotangent = jax.lax.optimization_barrier((jnp.zeros((), cotangent.dtype), cotangent))
        return _compat.gradient_of_max_pooling(pooling.params, cotangent, pooled, zero)

    return (
        eqn.replace(source_info=pooling.source_info, ctx=pooling.ctx) for eqn in traced_eqns(gradient, operands, result)
    )


@functools.cache
def _barrier_template() -> jex.JaxprEqn:
    """An `optimization_barrier` equation, from the public function; its parameters are none."""
    scalar = jex.Var(jax.core.ShapedArray((), jnp.float32))
    return traced_eqns(jax.lax.optimization_barrier, [scalar])[0]
