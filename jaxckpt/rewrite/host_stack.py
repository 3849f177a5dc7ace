"""Values of one type that wait on the host in the rows of one array, which is what libtpu leaves there.

Among its passes one moves a copy back up through barriers to the copy out, so that nothing leaves the device. A slice
of a larger array on the host it leaves where it is. The array is passed on: each copy out makes a new one of it, so
does each barrier, and the next reader takes the newest.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.extend.core as jex

from jaxckpt.ir import Offload
from jaxckpt.program.inline import open_jaxpr
from jaxckpt.schedule import Move, Schedule

_FEWEST_ROWS = 2
"""The slice of a single row is the whole array, which is none."""


@dataclass(slots=True)
class _Stack:
    """One array.

    Attributes:
      count: How many rows it has.
      instances: All that wait in it: each has the array's newest variable.
      written: How many rows are.
    """

    count: int
    instances: list[int] = field(default_factory=list)
    written: int = 0


class HostStacks:
    """The arrays of a step, and in which rows its instances wait; none where steps need none."""

    def __init__(self, variables: dict[int, Any], schedule: Schedule, *, stacked: bool):
        """Gives arrays as many rows as the schedule sends values of each type to the host.

        Args:
          variables: The variable of each instance so far; those of instances that wait are kept up to date.
          schedule: The schedule.
          stacked: Whether there are arrays at all.
        """
        self._variables = variables
        self._origin = schedule.origin
        self._stacks: dict[tuple[tuple[int, ...], Any], _Stack] = {}
        self._places: dict[int, tuple[_Stack, int]] = {}
        for step in schedule.steps if stacked else ():
            if isinstance(step, Move) and self._may_take(step) and not step.restores:
                self._stacks.setdefault(self._type(step), _Stack(0)).count += 1

    def takes(self, step: Move) -> bool:
        """Whether a move goes to a stack, or comes from one."""
        return self._may_take(step) and self._type(step) in self._stacks

    def move(self, step: Move, variable: Any) -> list[Any]:
        """The equations of a copy.

        Args:
          step: A copy that a stack takes.
          variable: What is copied: the value, or on the way back its array.

        Returns:
          Equations, the last of which writes the value alone, or its array.
        """
        (read,), (write,) = step.reads, step.writes
        if step.restores:
            row = self._places[read][1]
            return _eqns(lambda array: _onto_device(array, row), variable)
        stack = self._stacks[self._type(step)]
        row, stack.written = stack.written, stack.written + 1
        rows = max(_FEWEST_ROWS, stack.count)
        first = [] if stack.instances else _eqns(lambda: _room(rows, variable.aval))
        before = first[-1].outvars[0] if first else self._variables[stack.instances[-1]]
        eqns = [*first, *_eqns(lambda array, value: _into(array, value, row), before, variable)]
        self._add(write, stack, row)
        self.renew(write, eqns[-1].outvars[0])
        return eqns

    def passed(self, read: int, write: int) -> None:
        """Notes that an instance has passed a barrier as another one; what waits beside it has passed too."""
        if read in self._places:
            self._add(write, *self._places[read])
            self.renew(write, self._variables[write])

    def renew(self, instance: int, variable: Any) -> None:
        """Makes a variable the one of an instance, and of all that wait in the same array."""
        self._variables[instance] = variable
        if instance in self._places:
            self._variables.update(dict.fromkeys(self._places[instance][0].instances, variable))

    def _add(self, instance: int, stack: _Stack, row: int) -> None:
        self._places[instance] = stack, row
        stack.instances.append(instance)

    def _may_take(self, step: Move) -> bool:
        """Whether it is numbers that go to the host outside of loops; those in loops have a stack anyway."""
        is_there = isinstance(step.decision, Offload) and step.loop is None
        return is_there and not jax.dtypes.issubdtype(self._type(step)[1], jax.dtypes.extended)

    def _type(self, step: Move) -> tuple[tuple[int, ...], Any]:
        aval = self._variables[self._origin[step.reads[0]]].aval
        return aval.shape, aval.dtype


def _room(count: int, aval: Any) -> Any:
    return jax.device_put(jax.lax.full((count, *aval.shape), 0, aval.dtype), jax.memory.Space.Host)


def _into(array: Any, value: Any, row: int) -> Any:
    there = jax.device_put(value, jax.memory.Space.Host)
    return jax.lax.dynamic_update_slice(array, there[None], (row, *(0 for _ in value.shape)))


def _onto_device(array: Any, row: int) -> Any:
    shape = array.shape[1:]
    there = jax.lax.dynamic_slice(array, (row, *(0 for _ in shape)), (1, *shape))
    return jax.device_put(there.reshape(shape), jax.memory.Space.Device)


def _eqns(function: Callable[..., Any], *variables: Any) -> list[Any]:
    """The equations of a function of arrays, over variables; all that they write is new."""
    jaxpr = open_jaxpr(jax.make_jaxpr(function)(*(variable.aval for variable in variables)))
    known = dict(zip(jaxpr.invars, variables, strict=True))
    return [
        eqn.replace(invars=[known.get(v, v) if isinstance(v, jex.Var) else v for v in eqn.invars]) for eqn in jaxpr.eqns
    ]
