"""Compilers that are known to compute something else, with the reason: for a lint, and for plans that are refused.

Offloads in a scan on GPUs: XLA's annotator of dynamic slices, on again since 2026-06-02
(https://github.com/openxla/xla/pull/43606), took the raw induction variable for the position from the end, so that the
backward loop read residuals of another turn, without any error; fixed on 2026-07-27
(https://github.com/openxla/xla/pull/46308). 0.10.2 is seen to do it: the slices that it takes from a stack on the host
go forward where the loop goes backward, those from stacks on the device do not. 0.12.0.1 has both right. The wheels
between them fall into that window by their dates.
"""

import re
from collections.abc import Iterator

from jaxckpt._errors import UnsupportedDecisionError
from jaxckpt.advise.seen import Remark, Seen
from jaxckpt.ir import Graph, Offload, Plan
from jaxckpt.ir.possible import of_turns

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


def refuse_miscompiled(graph: Graph, plan: Plan, *, called: str, platform: str, version: str) -> None:
    """Refuses a plan whose results a compiler would silently get wrong.

    Args:
      graph: The step.
      plan: Decisions for it.
      called: What was asked for, for the message.
      platform: The compiler's family.
      version: Of its package; "" where it is not installed.

    Raises:
      UnsupportedDecisionError: The plan offloads what a loop's turns make, and the compiler mixes up the turns.
    """
    if not version or not plan.offloads or not reads_other_turns(platform, version):
        return
    turned = of_turns(graph)
    sent = [v for v, d in plan.decisions.items() if isinstance(d, Offload) and v in turned]
    if not sent:
        return
    names = sorted({graph.values[v].name or graph.ops[graph.producer[v] or 0].primitive for v in sent})
    raise UnsupportedDecisionError(
        f"{called}: the compiler would silently compute wrong gradients.",
        got=f"Offload of {len(sent)} values in bodies of loops ({', '.join(names)}), and the {platform} compiler"
        f" {version}, whose backward loop reads the residuals of another turn from the host (openxla/xla#46308)",
        needed=f"jax {'.'.join(map(str, FIRST_GOOD))} or later for these offloads",
        advice="another jax; or save or recompute what loops make: what stands outside of them may be offloaded",
        version=version,
    )


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
