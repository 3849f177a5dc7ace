"""Validation of decisions: those that no schedule can carry out are refused first.

XLA keeps the values that the iterations of a loop offload in one stack on the host. It refuses a stack of stacks with
an internal error, cuts the slices of an unrolled loop on the host, and undoes the copies of a value that forward and
backward pass on in one body.

Read after `jaxckpt.ir`; `schedule` asks first.
"""

from jaxckpt._errors import GraphError, UnsupportedDecisionError
from jaxckpt.ir import Graph, GraphPlan, Phase, Recompute


def validate_decisions(graph: Graph, plan: GraphPlan) -> None:
    """Refuses to recompute a value without a forward op that may run twice, and to offload without a stack on the host.

    Values that cannot be offloaded are named all at once, with the reason of each.
    """
    for value, decision in plan.decisions.items():
        if isinstance(decision, Recompute):
            _validate_recompute(graph, value)
    offloaded = [v for v, decision in plan.decisions.items() if decision.on_host]
    reasons = {v: why for v in offloaded if (why := reason_not_offloadable(graph, v)) is not None}
    if reasons:
        raise UnsupportedDecisionError(
            f"schedule: {len(reasons)} of {len(offloaded)} values cannot be offloaded to the host.",
            got="; ".join(f"Offload of {_described(graph, v)}: {why}" for v, why in reasons.items()),
            needed="values outside of loops and branches, or of one loop that is not unrolled and whose backward is"
            " another loop: all iterations store into one stack",
            advice="save or recompute them; of nested loops offload what the outer body makes for the inner loop (its"
            " input)",
            decisions=tuple(plan.decisions[v] for v in reasons),
        )


def _validate_recompute(graph: Graph, value: int) -> None:
    producer = graph.producer[value]
    op = None if producer is None else graph.ops[producer]
    if op is None or op.phase is not Phase.FORWARD or op.effects:
        written = "" if op is None else f", written by `{op.primitive}` in {op.scope or '/'}"
        raise GraphError(
            f"schedule: value {value} cannot be recomputed.",
            got=f"Recompute for {graph.values[value]}{written}",
            needed="a value that a forward op without effects makes",
            advice="leave it out of the plan, or save it",
            value=value,
        )


def reason_not_offloadable(graph: Graph, value: int) -> str | None:
    """The reason why a value cannot be offloaded to the host; None where it can."""
    if value in graph.branch_indices:
        return "it selects the branch of a cond, which every later pass over the cond reads on the device"
    path = graph.path(graph.loop_of[value])
    if not path:
        return None
    if graph.is_branched(path[-1]):
        return "it is made in a branch of a cond, whose other branches would have to store something too"
    if graph.values[value].local:
        return "it is made in the body of a shard_map in a loop"
    return _reason_not_stackable(graph, path)


def _reason_not_stackable(graph: Graph, path: tuple[int, ...]) -> str | None:
    """The reason why the values of a loop's iterations cannot be stacked on the host, by the loops around them."""
    # One branch a reason.
    loops = (graph.loops[loop] for loop in path if loop not in graph.loops_after_forward)
    stacked = [loop for loop in loops if loop.length > 1]
    if len(stacked) > 1:
        iterations = " x ".join(str(loop.length) for loop in stacked)
        return f"nested loops ({iterations} iterations) would need a stack of stacks, which XLA cannot compile"
    if not stacked and not graph.loops_after_forward.isdisjoint(path):
        return "forward and backward stand in the body of one loop, where XLA undoes the copies"
    if not stacked:
        return "a loop of one iteration has no other work for the copy to overlap with"
    if stacked[0].unroll > 1:
        return f"its loop is unrolled (unroll={stacked[0].unroll}), and XLA would cut the stack on the host"
    return None


def values_in_loops(graph: Graph) -> frozenset[int]:
    """Values that the bodies of loops make."""
    return frozenset(v for op in graph.ops if op.loop is not None for v in op.writes)


def _described(graph: Graph, value: int) -> str:
    producer = graph.producer[value]
    scope = "" if producer is None else graph.ops[producer].scope
    name = f" {graph.values[value].name!r}" if graph.values[value].name else ""
    return f"value {value}{name} in {scope or '/'}"
