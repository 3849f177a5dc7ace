"""What no schedule can do with a value, refused before anything is laid out.

What a loop's turns make waits on the host in one stack, which is what XLA places there: a stack of stacks it refuses
with an internal error, the slices of an unrolled loop it cuts on the host, and a value that forward and backward pass
on in one body it takes back.

Read after `plan` and `loop`; `schedule` asks first.
"""

from collections.abc import Iterator

from jaxckpt._errors import GraphError, UnsupportedDecisionError
from jaxckpt.ir.decision import Offload, Recompute
from jaxckpt.ir.graph import Graph, Phase
from jaxckpt.ir.loop import Loop
from jaxckpt.ir.plan import GraphPlan


def validate_decisions(graph: Graph, plan: GraphPlan) -> None:
    """Refuses decisions that cannot be carried out.

    Args:
      graph: The step.
      plan: Decisions for it.

    Raises:
      GraphError: A value is dropped that an op with effects, or no forward op, makes.
      UnsupportedDecisionError: Values of loops' bodies are offloaded that no stack on the host can hold; all of them
        at once, by the reason.
    """
    for value in sorted(v for v, decision in plan.decisions.items() if isinstance(decision, Recompute)):
        made = graph.producer[value]
        op = None if made is None else graph.ops[made]
        if op is None or op.phase is not Phase.FORWARD or op.effects:
            raise GraphError(
                f"schedule: value {value} cannot be computed again.",
                got=f"Recompute for {graph.values[value]}"
                + ("" if op is None else f", written by `{op.primitive}` in {op.scope or '/'}"),
                needed="a value that a forward op without effects makes",
                advice="leave it out of the plan, or save it",
                value=value,
            )
    sent = [v for v, decision in plan.decisions.items() if isinstance(decision, Offload)]
    refused = {v: why for v in sorted(sent) if (why := reason_not_offloadable(graph, v)) is not None}
    if refused:
        raise UnsupportedDecisionError(
            f"schedule: {len(refused)} of {len(sent)} values cannot wait on the host.",
            got="; ".join(f"Offload of {_shown(graph, v)}: {why}" for v, why in refused.items()),
            needed="values outside of loops and branches, or of the turns of one loop that is not unrolled and whose"
            " backward is another loop: they wait in one stack",
            advice="save or recompute them; of loops in one another offload what the outer body makes for the inner"
            " loop (its input)",
            decisions=tuple(plan.decisions[v] for v in refused),
        )


def reason_not_offloadable(graph: Graph, value: int) -> str | None:
    """Why a value cannot wait on the host; None where it can."""
    made = graph.producer[value]
    path = () if made is None else graph.path(graph.ops[made].loop)
    if not path:
        return None
    if graph.is_branched(path[-1]):
        return "it is made in a branch of a cond, whose other branches would have to send something too"
    if graph.values[value].local:
        return "it is made in the body of a shard_map in a loop"
    stacked = list(_stacking(graph, path))
    if len(stacked) > 1:
        turns = " x ".join(str(loop.length) for loop in stacked)
        return f"loops in one another ({turns} turns) would make a stack of stacks, which XLA cannot compile"
    if not stacked:
        is_late = any(loop in graph.loops_after_forward for loop in path)
        return (
            "forward and backward stand in the body of one loop, where XLA takes the copies back"
            if is_late
            else "a loop of one turn leaves nothing to copy beside"
        )
    if stacked[0].unroll > 1:
        return f"its loop is unrolled (unroll={stacked[0].unroll}), and XLA would cut the stack on the host"
    return None


def values_in_loops(graph: Graph) -> frozenset[int]:
    """The values that the turns of loops make."""
    return frozenset(v for op in graph.ops if op.loop is not None for v in op.writes)


def _stacking(graph: Graph, path: tuple[int, ...]) -> Iterator[Loop]:
    """The loops around a value whose turns it waits for, outermost first."""
    for loop in (graph.loops[around] for around in path):
        if loop.length > 1 and loop.id not in graph.loops_after_forward:
            yield loop


def _shown(graph: Graph, value: int) -> str:
    made = graph.producer[value]
    scope = "" if made is None else graph.ops[made].scope
    named = f" {graph.values[value].name!r}" if graph.values[value].name else ""
    return f"value {value}{named} in {scope or '/'}"
