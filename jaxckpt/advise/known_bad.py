"""Compilers that are known to compute something else, with the reason: what a lint says of a step that asks it.

Offloads in a scan on GPUs: XLA's annotator of dynamic slices, on again since 2026-06-02
(https://github.com/openxla/xla/pull/43606), took the raw induction variable for the position from the end, so that the
backward loop read residuals of another turn, without any error; fixed on 2026-07-27
(https://github.com/openxla/xla/pull/46308). Which wheels fall into that window is known by their dates alone.
"""

import re
from collections.abc import Iterator

from jaxckpt.advise.seen import Remark, Seen

FIRST_BAD, FIRST_GOOD = (0, 10, 2), (0, 12)
"""jax's GPU plugins from the one up to, not including, the other."""


def reads_other_turns(platform: str, version: str) -> bool:
    """Whether a compiler may read the residuals of another turn where a scan offloads them.

    Args:
      platform: The compiler's family ("cuda").
      version: Of the compiler's package.

    Example:
      >>> reads_other_turns("cuda", "0.11.0"), reads_other_turns("cuda", "0.12.0.1"), reads_other_turns("tpu", "0.11.0")
      (True, False, False)
    """
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:3])
    return platform == "cuda" and FIRST_BAD <= numbers < FIRST_GOOD


def miscompiled_offloads(seen: Seen) -> Iterator[Remark]:
    """Offloads in a scan, for a compiler that may get their gradients wrong."""
    target = seen.target
    if target is None or not reads_other_turns(target.platform, target.compiler_version):
        return
    for site in seen.sites:
        if site.goes_to_host and site.loops:
            yield Remark(
                where=seen.place(site),
                said=f"An offload in a scan: the compiler of {target.name}, {target.compiler_version}, may read the"
                " residuals of another turn in the backward, and gradients are then wrong without any error"
                " (openxla/xla#46308).",
                fix="Use jax 0.12 or later, or save the value; as a stopgap set"
                " --xla_disable_hlo_passes=dynamic-slice-annotator in XLA_FLAGS and compare gradients.",
            )
