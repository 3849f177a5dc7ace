"""A plan that moves values to the host is run beside its step, where both are small enough for this machine.

Copies to the host and back have been miscompiled before, so they are looked at without being asked.
"""

from collections.abc import Callable
from typing import Any

from jaxckpt import ir
from jaxckpt._errors import UnverifiableError
from jaxckpt._progress import Progress, silent
from jaxckpt.verifier import verify

_MOST_FLOPS = 1e11
_MOST_BYTES = 2**30
"""Steps of more work, or larger arguments, are not run unasked."""


def verification_note(
    step: Callable[..., Any],
    args: tuple[Any, ...],
    plan: ir.GraphPlan,
    graph: ir.Graph,
    *,
    donate_argnums: int | tuple[int, ...] = (),
    static_argnums: int | tuple[int, ...] = (),
    say: Progress = silent,
) -> str:
    """What comes of it, as a sentence for the plan's notes.

    Args:
      step: As the user wrote it.
      args: Its arguments.
      plan: What to carry out.
      graph: Of the step.
      donate_argnums: As for `Planner`.
      static_argnums: As for `Planner`.
      say: Told before anything is run.

    Raises:
      VerificationError: What the plan computes is not what the step computes.
    """
    ask = "jaxckpt.verify(step, plan.apply(step), *smaller_arguments) compares it with the step"
    flops = sum(op.flops or 0 for op in graph.ops)
    if flops > _MOST_FLOPS or graph.argument_bytes > _MOST_BYTES:
        return f"Not run: {flops / 1e9:.0f} GFLOP are too many for a check on this machine. {ask}."
    say("running the plan beside the step")
    try:
        verification = verify(step, plan, *args, donate_argnums=donate_argnums, static_argnums=static_argnums)
    except UnverifiableError as error:
        return f"Not run: {error.args[0].splitlines()[0]} {ask}."
    verification.check()
    return f"Run beside the step on this machine: {len(verification.leaves)} results are equal up to rounding."
