"""Refuses plans that a compiler would miscompile (`jaxckpt.machine.miscompilations`)."""

from jaxckpt._errors import UnsupportedDecisionError
from jaxckpt.ir import Graph, GraphPlan, Offload
from jaxckpt.machine.miscompilations import FIRST_GOOD, misreads_offloaded_stacks
from jaxckpt.schedule.validate import loop_values


def refuse_miscompiled(graph: Graph, plan: GraphPlan, *, called: str, platform: str, version: str) -> None:
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
    if not version or not plan.offloads or not misreads_offloaded_stacks(platform, version):
        return
    turned = loop_values(graph)
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
