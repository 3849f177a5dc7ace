"""Compiler versions that are known to compute something else than what the program says, with the evidence.

Offloads in a scan on GPUs: XLA's annotator of dynamic slices, on again since 2026-06-02
(https://github.com/openxla/xla/pull/43606), took the raw induction variable for the position from the end. The backward
loop then read residuals of another iteration, without any error. Fixed on 2026-07-27
(https://github.com/openxla/xla/pull/46308). jax 0.10.2 was seen to do it: the slices that its backward loop takes from
a residual stack on the host go forward where the loop goes backward, those from stacks on the device do not. jax
0.12.0.1 has both right. The wheels between them fall into that window by their dates.
"""

import re

FIRST_BAD, FIRST_GOOD = (0, 10, 2), (0, 12)
"""jax's GPU plugins from the one up to, not including, the other."""


def misreads_offloaded_stacks(platform: str, version: str) -> bool:
    """True if a compiler may read the residuals of another iteration where a scan offloads them.

    Args:
      platform: The compiler's family ("cuda").
      version: Version of the compiler's package.

    Example:
      >>> [misreads_offloaded_stacks("cuda", version) for version in ("0.11.0", "0.12.0.1")]
      [True, False]
      >>> misreads_offloaded_stacks("tpu", "0.11.0")
      False
    """
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:3])
    return platform == "cuda" and FIRST_BAD <= numbers < FIRST_GOOD
