"""Refuses plans that a compiler is known to miscompile, with the evidence.

Offloads in a scan on GPUs: XLA's annotator of dynamic slices, on again since 2026-06-02
(https://github.com/openxla/xla/pull/43606), took the raw induction variable for the position from the end. The backward
loop then read residuals of another iteration, without any error. Fixed on 2026-07-27
(https://github.com/openxla/xla/pull/46308). jax 0.10.2 was seen to do it: the slices that its backward loop takes from
a residual stack on the host go forward where the loop goes backward, those from stacks on the device do not. jax
0.12.0.1 has both right. The wheels between them fall into that window by their dates.
"""

import re

from jaxckpt._errors import UnsupportedDecisionError
from jaxckpt.ir import Graph, GraphPlan
from jaxckpt.schedule.validate import values_in_loops

FIRST_BAD, FIRST_GOOD = (0, 10, 2), (0, 12)
"""jax's GPU plugins from the one up to, not including, the other."""


def misreads_offloaded_stacks(platform: str, version: str) -> bool:
    """True if a compiler may read the residuals of another iteration where a scan offloads them.

    Example:
      >>> [misreads_offloaded_stacks("cuda", version) for version in ("0.11.0", "0.12.0.1")]
      [True, False]
      >>> misreads_offloaded_stacks("tpu", "0.11.0")
      False
    """
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:3])
    return platform == "cuda" and FIRST_BAD <= numbers < FIRST_GOOD


def refuse_miscompiled(graph: Graph, plan: GraphPlan, *, called: str, platform: str, version: str) -> None:
    """Refuses a plan whose results a compiler would silently get wrong; `version` is "" where none is installed."""
    if not version or not plan.offloads or not misreads_offloaded_stacks(platform, version):
        return
    offloaded = {v for v, decision in plan.decisions.items() if decision.on_host} & values_in_loops(graph)
    if not offloaded:
        return
    names = sorted({graph.values[v].name or graph.ops[graph.producer[v] or 0].primitive for v in offloaded})
    raise UnsupportedDecisionError(
        f"{called}: the compiler would silently compute wrong gradients.",
        got=f"Offload of {len(offloaded)} values in bodies of loops ({', '.join(names)}), and the {platform} compiler"
        f" {version}, whose backward loop reads the residuals of another iteration from the host (openxla/xla#46308)",
        needed=f"jax {'.'.join(map(str, FIRST_GOOD))} or later for these offloads",
        advice="another jax; or save or recompute values of loops; values outside of loops may be offloaded",
        version=version,
    )
