"""Equivalence check: a step and its planned form are run, and every result is compared.

Read in this order: `verification` (differences and tolerances), `inputs` (real arguments from descriptions),
`interpret` (a jaxpr interpreter, one operation at a time), `verify_step`.
"""

from jaxckpt.verifier.inputs import make_inputs as make_inputs
from jaxckpt.verifier.interpret import run_one_by_one as run_one_by_one
from jaxckpt.verifier.verification import (
    TOLERANCES as TOLERANCES,
    LeafDifference as LeafDifference,
    Tolerance as Tolerance,
    Verification as Verification,
    difference as difference,
)
from jaxckpt.verifier.verify_step import verify as verify
