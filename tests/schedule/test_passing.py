"""Running sums of gradients and when they pass barriers."""

from functools import partial

from jaxckpt.ir import Phase
from jaxckpt.schedule.passing import GradAccumulators
from tests.graphs import Builder


def test_addends_are_live_until_the_product_before_their_addition():
    """Two addends of the backward are added long after another one that is computed behind them."""
    build = Builder()
    op = partial(build.op, size_bytes=4000, phase=Phase.BACKWARD)
    seed = build.input(4000)
    first, second, short = op("sin", seed), op("sin", seed), op("sin", seed)
    product = op("dot_general", seed)
    added = op("add_any", short, product)
    last = op("dot_general", added)
    result = op("add_any", second, op("add_any", first, last))
    graph = build.graph(result)
    live = {v: GradAccumulators(graph).live_at(graph.producer[v]) for v in (second, short, product, added, last)}
    assert live == {second: [first], short: [first, second], product: [first, second], added: [first, second], last: []}
