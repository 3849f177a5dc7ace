"""Checks a plan that offloads: the planned step and the step are run, where both are small enough for this machine.

XLA has miscompiled copies to the host and back before, so plans with such copies are checked without being asked.
"""

from jaxckpt import ir
from jaxckpt._errors import UnverifiableError
from jaxckpt._progress import Progress, silent
from jaxckpt._step import Step
from jaxckpt.verifier import LeafDifference, verify

_MOST_FLOPS = 1e11
_MOST_BYTES = 2**30
"""Steps of more work, or larger arguments, are not run unasked. A core multiplies float32 matrices of so many FLOPs in
a second, and the check runs two steps; of so many bytes of arguments and results it holds a few copies."""

_AMPLIFIED = 0.01
"""Differences beyond a tolerance, but below this share of a result's largest magnitude, are looked at one operation at
a time. What XLA has miscompiled was another array altogether."""


def verification_note(step: Step, plan: ir.GraphPlan, graph: ir.Graph, *, say: Progress = silent) -> str:
    """Runs a planned step and the step; a sentence on it for the plan's notes, or `VerificationError`."""
    ask = "jaxckpt.verify(step, plan.apply(step), *smaller_arguments) compares it with the step"
    flops = sum(op.flops or 0 for op in graph.ops)
    if flops > _MOST_FLOPS or graph.argument_bytes > _MOST_BYTES:
        return f"Not run: {flops / 1e9:.0f} GFLOP are too many for a check on this machine. {ask}."
    say("running the plan beside the step")
    try:
        verification = verify(step, plan)
        if verification.wrong and all(map(_may_be_rounding, verification.wrong)):
            verify(step, plan, exact=True).check()
            return (
                f"Run beside the step on this machine, one operation at a time: {len(verification.leaves)} results are"
                f" equal bit for bit. Compiled, rounding changes {len(verification.wrong)} of them by more than usual."
            )
    except UnverifiableError as error:
        return f"Not run: {error.args[0].splitlines()[0]} {ask}."
    verification.check()
    return f"Run beside the step on this machine: {len(verification.leaves)} results are equal up to rounding."


def _may_be_rounding(leaf: LeafDifference) -> bool:
    """True for a small difference: Adam divides a gradient by its size, and rounding of a small one with it."""
    return not leaf.not_finite_differing and leaf.max_absolute <= _AMPLIFIED * leaf.largest
