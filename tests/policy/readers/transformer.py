"""A small transformer as a graph, to see what policies that were read decide about it."""

from jaxckpt.ir import Phase, Recompute, Trait
from jaxckpt.policy import Policy
from jaxckpt.solve import Problem, plan_from_policy
from tests.graphs import RATES, Builder

LAYERS = 4
SIZE = 4 * 2**20
NAMES = {
    "attn/query": "query_proj",
    "attn/key": "key_proj",
    "attn/out": "out_proj",
    "mlp/wi": "mlpwi",
    "mlp/wo": "mlpwo",
}


def transformer():
    """Layers of attention and feed-forward, whose values are all read in the backward."""
    build = Builder()
    x = build.op("gather", build.input(SIZE), size_bytes=SIZE, scope="net/embed")
    saved = [x]

    def op(primitive, *reads, scope, **facts):
        saved.append(build.op(primitive, *reads, size_bytes=SIZE, scope=scope, **facts))
        return saved[-1]

    for layer in range(LAYERS):
        at = f"net/block_{layer}"
        normed = op("rsqrt", x, scope=f"{at}/norm")
        query, key = (op("dot_general", normed, scope=f"{at}/attn/{name}") for name in ("query", "key"))
        scores = op("dot_general", query, key, scope=f"{at}/attn", traits=frozenset({Trait.BATCHED}))
        weights = op("exp", scores, scope=f"{at}/attn")
        out = op("dot_general", weights, scope=f"{at}/attn/out")
        hidden = op("dot_general", out, scope=f"{at}/mlp/wi")
        gated = op("mul", hidden, scope=f"{at}/mlp")
        x = op("dot_general", gated, scope=f"{at}/mlp/wo")
    cotangent = build.op("dot_general", x, size_bytes=SIZE, phase=Phase.BACKWARD)
    for value in reversed(saved):
        cotangent = build.op("mul", cotangent, value, size_bytes=SIZE, phase=Phase.BACKWARD)
    for op_ in build.ops:
        for suffix, name in NAMES.items():
            if op_.scope.endswith(suffix):
                value = build.values[op_.writes[0]]
                build.values[value.id] = type(value)(
                    id=value.id, shape=value.shape, dtype=value.dtype, size_bytes=value.size_bytes, name=name
                )
    return build.graph(cotangent)


def carried_out(policy: Policy) -> dict[str, str]:
    """For each value with a decision in the plan, by where it is made, the word for the decision."""
    graph = transformer()
    decisions = plan_from_policy(Problem(graph=graph, rates=RATES), policy).plan.decisions
    ops = {value: graph.ops[graph.producer[value]] for value in decisions}
    return {f"{op.scope.removeprefix('net/')}:{op.primitive}": decisions[v].word for v, op in ops.items()}


def saved_layers(policy: Policy) -> list[int]:
    """Layers whose output is saved."""
    found = carried_out(policy)
    return [layer for layer in range(LAYERS) if found.get(f"block_{layer}/mlp/wo:dot_general") == "save"]


def decided(policy: Policy) -> dict[str, str]:
    """For each value, by where it is made, the word for what happens to it."""
    graph = transformer()
    resolved = plan_from_policy(Problem(graph=graph, rates=RATES), policy).resolved
    found = [(each.forward_value, each.decision) for each in resolved]
    return {f"{v.scope.removeprefix('net/')}:{v.primitive}": type(decision).__name__.lower() for v, decision in found}


def recomputed_layers(policy: Policy) -> list[int]:
    """Layers in which the query is computed again."""
    found = decided(policy)
    word = Recompute.__name__.lower()
    return [layer for layer in range(LAYERS) if found.get(f"block_{layer}/attn/query:dot_general") == word]
