"""Whether a planned step computes what the step computes: both are run, and every result is compared.

Read in this order: `verification` (what is said about each result, and what is allowed), `inputs` (real arguments from
descriptions), `difference` (two arrays), `one_by_one` (a step run one operation at a time), `by_device` (the same in
the body of a `shard_map`), `runnable` (a step with what its jit says), `verify`.
"""

from jaxckpt.verifier.difference import difference
from jaxckpt.verifier.inputs import make_inputs
from jaxckpt.verifier.interpret import run_one_by_one
from jaxckpt.verifier.verification import TOLERANCES, LeafDifference, Tolerance, Verification
from jaxckpt.verifier.verify import verify

__all__ = [
    "TOLERANCES",
    "LeafDifference",
    "Tolerance",
    "Verification",
    "difference",
    "make_inputs",
    "run_one_by_one",
    "verify",
]
