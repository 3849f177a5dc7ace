"""A traced step and a plan become a step that carries the plan out.

The plan's schedule is laid out, turned into equations and checked by JAX's own type checker. The result computes
the same values as the step, from the same flat arguments, and nothing is traced again.

Read after `equations`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.core
import jax.extend.core as jex

from jaxckpt._errors import PlanMismatchError
from jaxckpt.ir import GraphPlan, Phase
from jaxckpt.outline import closed_jaxpr
from jaxckpt.program.flat_program import FlatProgram
from jaxckpt.program.inline import constants_of, open_jaxpr
from jaxckpt.rewrite.equations import equations
from jaxckpt.rewrite.tile_loops import with_planned_loops
from jaxckpt.schedule import Schedule, schedule
from jaxckpt.trace import Traced


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rewritten:
    """A step that carries out a plan.

    Attributes:
      traced: The step; where the plan splits or nests loops, that with such loops.
      plan: The plan.
      schedule: Its work in order; a step that is a run is an equation of `jaxpr`, in the same order; those in the body
        of an open loop are in the body of a scan.
      jaxpr: The step's closed jaxpr, one level deep but for loops and branches.
    """

    traced: Traced
    plan: GraphPlan
    schedule: Schedule = field(repr=False)
    jaxpr: Any = field(repr=False)

    def call(self, *flat: Any) -> Sequence[Any]:
        """Runs the planned step over flat arrays, in the order of `Traced.specs`; returns flat results."""
        return jax.core.eval_jaxpr(open_jaxpr(self.jaxpr), constants_of(self.jaxpr), *flat)


def rewrite(traced: Traced, plan: GraphPlan, *, stacked: bool = False) -> Rewritten:
    """Carries out a plan on a traced step.

    Args:
      traced: The step, its loops whole.
      plan: Decisions for its graph, or for that of the step with loops in stretches or nested. Values dropped are
        computed again in the backward pass; without any dropped value the equations are the step's own.
      stacked: Whether what waits on the host does so in the rows of one array, as steps for TPUs need it.

    Returns:
      The planned step.

    Raises:
      PlanMismatchError: The plan is for another graph, or splits or nests a loop that is not there.
      UnsupportedDecisionError: The plan asks for a memory space or a mesh axis that is not there.
      GraphError: The plan drops what cannot be computed again.
      jax.extend.core.JaxprTypeError: The rewritten step is not well-typed; a bug of ours.
    """
    if plan.fingerprint != traced.graph.fingerprint:
        raise PlanMismatchError(
            f"rewrite({traced.name}): the plan is for another step.",
            got=f"a step of {len(traced.graph.ops)} ops with fingerprint {traced.graph.fingerprint}",
            needed=f"the step with fingerprint {plan.fingerprint} that the plan was made for",
            advice="plan again for this step, these shapes and this version of jax",
            planned=plan.fingerprint,
            found=traced.graph.fingerprint,
        )
    split = with_planned_loops(traced, plan)
    laid_out = schedule(split.graph, plan)
    made, outvars = equations(split, laid_out, stacked=stacked)
    program = _numbered(split) if plan.decisions else split.program
    closed = closed_jaxpr(program, made, outvars)
    jex.check_jaxpr(open_jaxpr(closed))
    return Rewritten(traced=split, plan=plan, schedule=laid_out, jaxpr=closed)


def _numbered(traced: Traced) -> FlatProgram:
    """The program of a step with the turns of those loops numbered in whose bodies forward and backward stand.

    Not where devices exchange data: there XLA orders the kernels of every body anew anyway.
    """
    graph, program = traced.graph, traced.program
    if graph.mesh:
        return program
    early = {around for op in graph.ops if op.phase is Phase.FORWARD for around in graph.path(op.loop)}
    loops = list(program.loops)
    for at, opened in enumerate(loops):
        whole = (
            opened.offset is None and not opened.is_inner_tile and opened.cond_branch is None and opened.manual is None
        )
        if whole and at in early & graph.loops_after_forward and graph.loops[at].rolled:
            loops[at] = replace(opened, reads_iteration_number=True)
    return program.replace(loops=tuple(loops))
