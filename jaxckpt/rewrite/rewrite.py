"""A traced step and a plan become a step that carries the plan out.

The plan's schedule becomes equations, and JAX's own type checker checks these. The result computes the same values as
the step, from the same flat arguments, and nothing is traced again.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import jax
import jax.core
import jax.extend.core as jex

from jaxckpt.ir import GraphPlan, Phase
from jaxckpt.outline import closed_jaxpr
from jaxckpt.program.flat_program import AnyJaxpr, Atom, FlatProgram, OpenLoop, is_on_host
from jaxckpt.program.inline import constants_of, open_jaxpr
from jaxckpt.rewrite.check_plan import check_planned
from jaxckpt.rewrite.equations import equations
from jaxckpt.rewrite.host_arguments import host_sharding, with_host_arguments
from jaxckpt.rewrite.moves import copy_metadata
from jaxckpt.rewrite.transformed_step import transformed_step
from jaxckpt.schedule import Schedule, schedule
from jaxckpt.trace import Traced


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rewritten:
    """A step that carries out a plan.

    `traced` has its rows in pieces, its loops split or tiled and its state in host memory as the plan says. Each run of
    the schedule is an equation of `jaxpr`, in the same order; those of a loop are in the body of a scan. `for_tpu` says
    that it is written as steps for TPUs need it: offloaded values are rows of one array.
    """

    traced: Traced
    plan: GraphPlan
    schedule: Schedule = field(repr=False)
    jaxpr: AnyJaxpr = field(repr=False)
    for_tpu: bool = False

    @property
    def in_shardings(self) -> tuple[jax.sharding.Sharding | None, ...]:
        """The sharding that the step's own jit asks of each flat argument, in the memory that the plan has it in."""
        return tuple(map(_in_memory, self.traced.in_shardings, open_jaxpr(self.jaxpr).invars))

    @property
    def out_shardings(self) -> tuple[jax.sharding.Sharding | None, ...]:
        """The sharding that it asks of each result, in the memory that the plan has it in."""
        return tuple(map(_in_memory, self.traced.out_shardings, open_jaxpr(self.jaxpr).outvars))

    def call(self, *flat: jax.Array) -> Sequence[jax.Array]:
        """Runs the planned step over flat arrays, in the order of `Traced.specs`; returns flat results."""
        with copy_metadata(self.plan, for_tpu=self.for_tpu):
            return jax.core.eval_jaxpr(open_jaxpr(self.jaxpr), constants_of(self.jaxpr), *flat)


def rewrite(traced: Traced, plan: GraphPlan, *, for_tpu: bool = False, transformed: Traced | None = None) -> Rewritten:
    """Carries out a plan on a traced step, as it was traced.

    Without decisions the equations are the step's own. With `for_tpu` offloaded values are rows of one array on the
    host, as steps for TPUs need it, and residual stacks have the shape of their values. `transformed` is the result of
    `transformed_step`, where it exists already. A step that is not well-typed afterwards
    (jax.extend.core.JaxprTypeError) is a bug of ours.
    """
    check_planned(traced, plan)
    if transformed is None:
        transformed = transformed_step(traced, plan)
    if plan.host_arguments:
        transformed = with_host_arguments(transformed, plan.host_arguments)
    steps = schedule(transformed.graph, plan)
    eqns, outvars = equations(transformed, steps, for_tpu=for_tpu)
    program = _with_scheduled_loops(transformed) if plan.decisions else transformed.program
    closed = closed_jaxpr(program, eqns, outvars)
    jex.check_jaxpr(open_jaxpr(closed))
    return Rewritten(traced=transformed, plan=plan, schedule=steps, jaxpr=closed, for_tpu=for_tpu)


def _in_memory(sharding: jax.sharding.Sharding | None, atom: Atom) -> jax.sharding.Sharding | None:
    return host_sharding(sharding) if sharding is not None and is_on_host(atom.aval) else sharding


def _with_scheduled_loops(traced: Traced) -> FlatProgram:
    """The program of a step whose loops are written so that XLA's scheduler for GPUs keeps the plan's memory.

    Iterations with a forward and a backward pass read their number from an array. Where several loops of the backward
    pass follow one another, they begin their stacks late (`jaxckpt.outline.stack_indexing`); a single loop's stacks are
    alive at the peak in any case. Not where devices exchange data: there XLA orders the kernels of every body anew
    anyway.
    """
    graph, program = traced.graph, traced.program
    if graph.mesh:
        return program
    with_forward = {around for op in graph.ops if op.phase is Phase.FORWARD for around in graph.path(op.loop)}
    backward = graph.loops_after_forward - with_forward
    siblings = Counter(program.loops[loop].parent for loop in backward)
    loops = list(program.loops)
    for loop in graph.loops_after_forward:
        if graph.loops[loop].rolled and _is_plain(loops[loop]):
            is_delayed = loop in backward and siblings[loops[loop].parent] > 1
            loops[loop] = replace(loops[loop], reads_iteration_number=loop in with_forward, delays_stacks=is_delayed)
    return program.replace(loops=tuple(loops))


def _is_plain(opened: OpenLoop) -> bool:
    """True for a scan that is neither a part of a split loop, nor over the iterations of a tile, nor of one device."""
    iterates_itself = opened.offset is None and not opened.is_inner_tile and not opened.is_while
    return iterates_itself and opened.cond_branch is None and opened.manual is None
