"""Residual stacks of flat arrays, which have one layout.

XLA for GPUs lets the kernels of a backward loop choose the layout of a residual stack. Example: a product that gives
the gradient of a weight reads its cotangent transposed; elementwise ops pass this layout on to the residuals that they
read, and so to the residual stacks. Then the forward loop transposes each slice before it is written, and the backward
loop transposes it again for other products. Nothing of this happens where the body of one loop flattens a slice, and
that of the other gives it its shape again, both without a kernel. A scanned decoder whose attention and feed-forward
part read one norm takes 26.3 ms under the rule `dots` with residual stacks of shaped arrays, and 24.1 with flat ones
(estimates, H200); of 19 plans for three scanned decoders 11 are faster by 0.4% to 10%, and none is slower.

Values with another layout than their shape stay as they are: to flatten them is a copy. So do values that anything but
an op of another loop reads outside their own loop: they would be stored flat and shaped. Not on several devices, where
flat arrays would have to be resharded, and not for TPUs, where they have other tiles. Read after
`jaxckpt.schedule.layout`.
"""

from collections.abc import Mapping

import jax.extend.core as jex

from jaxckpt.ir import Graph
from jaxckpt.ir.regions import LOOP_BOUNDARIES
from jaxckpt.program import Equation
from jaxckpt.program.flat_program import traced_eqns
from jaxckpt.schedule import Run, Schedule
from jaxckpt.schedule.layout import Layouts


class FlatResidualStacks:
    """Adds the equations that flatten values in the loop that makes them, and shape them in loops that read them.

    Args:
      graph: The step.
      instances: The instances that are stacked flat, each with the loop that makes it.
      eqns: The equations so far, to which those of this class are added.
    """

    def __init__(self, graph: Graph, instances: Mapping[int, int], eqns: list[Equation]):
        self._graph, self._instances, self._eqns = graph, instances, eqns
        self._flat: dict[int, jex.Var] = {}
        self._shaped: dict[tuple[int, int | None], jex.Var] = {}

    def flatten(self, step: Run, written: jex.JaxprEqn) -> None:
        """Flattens the results of an equation that other loops read."""
        for instance, variable in zip(step.writes, written.outvars, strict=True):
            if instance in self._instances:
                self._flat[instance] = self._add(variable, (-1,), step, written)

    def operand(self, instance: int, variable: jex.Var, step: Run, reader: jex.JaxprEqn) -> jex.Var:
        """The variable of an instance in the loop of its reader."""
        loop = self._instances.get(instance)
        if loop is None or loop in self._graph.path(step.loop):
            return variable
        key = instance, step.loop
        if key not in self._shaped:
            self._shaped[key] = self._add(self._flat[instance], variable.aval.shape, step, reader)
        return self._shaped[key]

    def _add(self, variable: jex.Var, shape: tuple[int, ...], step: Run, like: jex.JaxprEqn) -> jex.Var:
        (eqn,) = traced_eqns(lambda array: array.reshape(shape), [variable])
        eqn = eqn.replace(source_info=like.source_info, ctx=like.ctx)
        self._eqns.append(Equation(eqn, loop=step.loop))
        return eqn.outvars[0]


def read_in_other_loops(graph: Graph, schedule: Schedule) -> dict[int, int]:
    """Instances with the layout of their shape that ops in other loops read, and nothing else outside their own loop.

    Each with the loop that makes it.
    """
    loop_of: dict[int, int] = {}
    found: dict[int, int] = {}
    others: set[int] = set()
    for step in schedule.steps if graph.loops else ():
        is_run = isinstance(step, Run) and step.loop is not None and graph.loops[step.loop].rolled
        enters_or_leaves = isinstance(step, Run) and graph.ops[step.op].primitive in LOOP_BOUNDARIES
        for read in step.reads:
            if read in loop_of and loop_of[read] not in graph.path(step.loop):
                if is_run and not enters_or_leaves:
                    found[read] = loop_of[read]
                else:
                    others.add(read)
        if is_run:
            loop_of.update(dict.fromkeys(step.writes, step.loop))
    return {v: loop for v, loop in found.items() if v not in others and _is_shaped(graph, schedule.origin[v])}


def _is_shaped(graph: Graph, value: int) -> bool:
    """True for an array of several axes whose layout is that of its shape."""
    order = graph.once(Layouts).of(value)
    return len(order) > 1 and order == tuple(range(len(order)))
