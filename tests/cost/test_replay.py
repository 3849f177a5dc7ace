"""The replay counts what is alive as a machine with unlimited patience would."""

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from jaxckpt.cost import arithmetic_costs, fuse, replay
from jaxckpt.ir import Exchange, Graph, GraphPlan, Phase, Recompute, Save
from jaxckpt.schedule import Barrier, Run, Schedule, schedule
from tests.graphs import RATES, Builder, chain, graphs, without_fusion
from tests.residuals import residuals


def replayed(graph: Graph, plan: GraphPlan | None = None):
    laid_out = schedule(graph, plan or GraphPlan(fingerprint=""))
    fusion = fuse(graph)
    return replay(graph, laid_out, fusion=fusion, arithmetic=arithmetic_costs(graph, RATES), rates=RATES)


def counted_by_hand(graph: Graph, laid_out: Schedule) -> list[int]:
    """Live bytes per step where every instance is in memory and a barrier hands its buffers on."""
    buffer = list(range(len(laid_out.origin)))
    for step in laid_out.steps:
        if isinstance(step, Barrier):
            for read, write in zip(step.reads, step.writes, strict=True):
                buffer[write] = buffer[read]
    elsewhere = {buffer[i] for i in (*graph.inputs, *graph.constants, *laid_out.outputs)}
    born, dies = {}, {}
    for at, step in enumerate(laid_out.steps):
        for i in step.writes:
            if not isinstance(step, Barrier):
                born[i] = dies[i] = at
        for i in step.reads:
            dies[buffer[i]] = at
    size_bytes = [graph.values[v].size_bytes for v in laid_out.origin]
    return [
        sum(size_bytes[b] for b in born if b not in elsewhere and born[b] <= at <= dies[b])
        for at in range(len(laid_out.steps))
    ]


@st.composite
def planned(draw: st.DrawFn) -> tuple[Graph, GraphPlan]:
    graph = without_fusion(draw(graphs()))
    decisions = {}
    for residual in residuals(graph):
        choices = [None, Save()]
        if not graph.ops[residual.op].effects and residual.value not in graph.outputs:
            choices.append(Recompute())
        decision = draw(st.sampled_from(choices))
        if decision is not None:
            decisions[residual.value] = decision
    forward = [op.id for op in graph.ops if op.phase is Phase.FORWARD]
    stages = tuple(sorted({0, *draw(st.lists(st.sampled_from(forward), max_size=3))}))
    return graph, GraphPlan(fingerprint="", decisions=decisions, stages=stages)


@given(planned())
def test_live_bytes_are_those_of_a_count_by_hand(case):
    graph, plan = case
    laid_out = schedule(graph, plan)
    got = replayed(graph, plan)
    reordered = Schedule(steps=got.steps, origin=laid_out.origin, outputs=laid_out.outputs)
    assert list(got.live_bytes) == counted_by_hand(graph, reordered)
    assert len(got.steps) == len(laid_out.steps)


def test_a_chain_without_a_plan_holds_every_product():
    graph = chain(8)
    assert replayed(graph).peak_bytes == (8 + 1) * 4000


def test_recomputed_products_lower_the_peak_and_cost_their_time():
    graph = chain(8)
    drop = {r.value: Recompute() for r in residuals(graph) if r.op % 2}
    plan = GraphPlan(fingerprint="", decisions=drop, stages=tuple(range(0, 8, 2)))
    plain, plan = replayed(graph), replayed(graph, plan)
    assert plan.peak_bytes < plain.peak_bytes
    copies = sum(1 for step in plan.steps if getattr(step, "is_clone", False))
    assert copies == len(drop)
    assert plan.recompute_s == pytest.approx(plan.step_s - plain.step_s)


def test_a_value_inside_a_kernel_keeps_its_source_alive():
    build = Builder()
    x = build.input(4000)
    product = build.op("dot_general", x, size_bytes=4000)
    inside = build.op("neg", product, size_bytes=8000)
    build.op("reduce_sum", inside, size_bytes=4)
    late = build.op("reduce_sum", inside, size_bytes=4, phase=Phase.BACKWARD)
    graph = build.graph(late)
    assert inside not in fuse(graph).materialised
    assert replayed(graph).births.keys() == {product, 3}
    assert replayed(graph).deaths[product] == 3


def test_an_elementwise_kernel_may_overwrite_what_dies_in_it():
    build = Builder()
    x = build.input(4000)
    a = build.op("dot_general", x, size_bytes=4000)
    b = build.op("tanh", a, size_bytes=4000)
    c = build.op("dot_general", b, size_bytes=4)
    graph = build.graph(c)
    assert b in fuse(graph).materialised
    assert replayed(graph).peak_bytes == 4000


@pytest.mark.parametrize(
    ("apart", "bias", "dtype", "stored"),
    [
        (False, False, "float32", False),
        (True, False, "float32", True),
        (False, True, "float32", True),
        (False, True, "bfloat16", True),
    ],
)
def test_a_recomputed_tanh_is_stored_if_its_readers_are_apart_or_summed(apart, bias, dtype, stored):
    """One reader gives a weight's gradient, the other needs that gradient if `apart`, and the same cotangent if not.

    The gradient of a bias is the sum of what the other reader writes.
    """
    build = Builder()
    wide = build.op("dot_general", build.input(4000), size_bytes=4000)
    active = build.op("tanh", wide, size_bytes=4000)
    slope = build.op("mul", active, size_bytes=4000)
    end = build.op("dot_general", active, size_bytes=4000)
    cotangent = build.op("dot_general", end, size_bytes=4000, phase=Phase.BACKWARD)
    scaled = build.op("mul", active, cotangent, size_bytes=4000, phase=Phase.BACKWARD)
    gradient = build.op("dot_general", scaled, scaled, size_bytes=4000, phase=Phase.BACKWARD)
    on = build.op("dot_general", gradient if apart else cotangent, size_bytes=4000, phase=Phase.BACKWARD)
    last = build.op("mul", slope, on, size_bytes=4000, phase=Phase.BACKWARD)
    build.values[last] = replace(build.values[last], dtype=dtype)
    ends = [gradient, build.op("dot_general", last, last, size_bytes=4000, phase=Phase.BACKWARD)]
    if bias:
        ends.append(build.op("reduce_sum", last, size_bytes=4, phase=Phase.BACKWARD))
    graph = build.graph(*ends)
    got = replayed(graph, GraphPlan(fingerprint="", decisions={wide: Save(), active: Recompute(), slope: Recompute()}))
    clones = [at for at, step in enumerate(got.steps) if isinstance(step, Run) and step.is_clone]
    clone = next(at for at in clones if active in graph.ops[got.steps[at].op].writes)
    assert (got.seconds[clone] > 0) is stored


def test_a_product_is_overwritten():
    build = Builder()
    product = build.shaped("dot_general", build.input(256), shape=(2, 4, 8))
    written = build.shaped("tanh", product, shape=(2, 4, 8))
    graph = build.graph(build.op("dot_general", written, size_bytes=4))
    assert replayed(graph).peak_bytes == 256


@pytest.mark.parametrize(("second", "kept"), [("float32", True), ("bfloat16", False)])
def test_zeros_of_two_scatters_live_from_the_first_to_the_last(second, kept):
    build = Builder()
    places, updates = build.input(8), build.input(4000)
    first = build.op("broadcast_in_dim", size_bytes=4000)
    between = build.op("dot_general", build.op("scatter-add", first, places, updates, size_bytes=4000), size_bytes=8)
    wide = build.op("dot_general", between, size_bytes=10**6)
    narrow = build.op("dot_general", wide, size_bytes=8)
    zeros = build.op("broadcast_in_dim", size_bytes=4000)
    build.values[zeros] = replace(build.values[zeros], dtype=second)
    last = build.op("scatter-add", zeros, places, build.op("dot_general", narrow, size_bytes=4000), size_bytes=4000)
    graph = build.graph(build.op("dot_general", last, size_bytes=4))
    found = replayed(graph)
    assert found.peak_bytes == 10**6 + 8 + (4000 if kept else 0)
    assert zeros not in found.alive_at(found.live_bytes.index(found.peak_bytes))


def test_zeros_that_wait_for_something_are_shared_with_none():
    build = Builder()
    places, updates = build.input(8), build.input(4000)
    first = build.op("broadcast_in_dim", size_bytes=4000)
    between = build.op("dot_general", build.op("scatter-add", first, places, updates, size_bytes=4000), size_bytes=8)
    zeros = build.op("broadcast_in_dim", size_bytes=4000)
    scattered = build.op("scatter-add", zeros, places, between, size_bytes=4000)
    graph = build.graph(build.op("dot_general", scattered, size_bytes=4))
    as_it_is = schedule(graph, GraphPlan(fingerprint=""))
    held = [replace(step, after=between) if zeros in step.writes else step for step in as_it_is.steps]
    fusion, arithmetic = fuse(graph), arithmetic_costs(graph, RATES)
    alive = [
        replay(graph, laid_out, fusion=fusion, arithmetic=arithmetic, rates=RATES).deaths[first]
        for laid_out in (as_it_is, replace(as_it_is, steps=tuple(held)))
    ]
    assert alive == [3, 1]


def test_an_update_runs_as_soon_as_its_gradient_is_available():
    build = Builder()
    weights = [build.input(4000) for _ in range(4)]
    hidden = [build.op("dot_general", weights[0], size_bytes=4)]
    gradients = [build.op("dot_general", hidden[0], w, size_bytes=4000, phase=Phase.BACKWARD) for w in weights]
    updated = [
        build.op("sub", w, g, size_bytes=4000, phase=Phase.UPDATE) for w, g in zip(weights, gradients, strict=True)
    ]
    graph = build.graph(*updated, donated=weights)
    assert replayed(graph).peak_bytes == 4000 + 4


def test_reductions_over_the_same_rows_share_one_pass():
    """Not over the rows of a product (`test_loops_share_kernels_as_compiled`)."""
    build = Builder()
    x = build.op("conv_general_dilated", build.input(8), size_bytes=10**6)
    for primitive in ("reduce_max", "reduce_sum"):
        build.op(primitive, x, size_bytes=4)
    got = replayed(build.graph(1))
    first, second = got.seconds[1:3]
    assert second < first / 2


def test_a_reduction_joins_the_loop_that_writes_its_operand():
    def seconds(*, pinned):
        build = Builder()
        x, y = build.input(10**6), build.input(10**6)
        stream = build.op("add", x, y, size_bytes=10**6)
        total = build.op("reduce_sum", stream, size_bytes=4)
        late = build.op("mul", stream, total, size_bytes=10**6, phase=Phase.BACKWARD)
        graph = build.graph(late)
        laid_out = schedule(graph, GraphPlan(fingerprint=""))
        if pinned:
            add, rest = laid_out.steps[0], laid_out.steps[1:]
            behind = len(graph.values)
            rest = [replace(s, reads=tuple(behind if r == stream else r for r in s.reads)) for s in rest]
            pin = Barrier(reads=(stream,), writes=(behind,))
            laid_out = Schedule(steps=(add, pin, *rest), origin=(*laid_out.origin, stream), outputs=laid_out.outputs)
        fusion = fuse(graph)
        got = replay(graph, laid_out, fusion=fusion, arithmetic=arithmetic_costs(graph, RATES), rates=RATES)
        return next(s for step, s in zip(got.steps, got.seconds, strict=True) if step.writes == (total,))

    assert seconds(pinned=False) < 1e-9
    assert seconds(pinned=True) >= 10**6 / RATES.memory_bandwidth_bytes_per_s


def test_a_gather_reads_as_often_as_it_picks():
    build = Builder()
    table, picks = build.input(1000), build.input(400)
    picked = build.op("gather", table, picks, size_bytes=10**6)
    got = replayed(build.graph(build.op("reduce_sum", picked, size_bytes=4)))
    assert got.step_s >= 10**6 / RATES.memory_bandwidth_bytes_per_s


def test_each_source_of_a_gathered_table_is_read_by_its_share():
    build = Builder()
    rows, scale, picks = build.input(1000), build.input(4), build.input(400)
    table = build.op("mul", rows, scale, size_bytes=1000)
    picked = build.op("gather", table, picks, size_bytes=10**6)
    got = replayed(build.graph(build.op("reduce_sum", picked, size_bytes=4)))
    read_bytes = 10**6 + 4 * 10**3 + 400
    assert read_bytes <= (got.step_s - RATES.launch_s) * RATES.memory_bandwidth_bytes_per_s <= 1.01 * read_bytes


def test_exchanges_take_link_time_and_clones_gather_nothing():
    rates = replace(RATES, link_bandwidth_bytes_per_s=1e8)

    def seconds(**exchanged):
        build = Builder()
        x = build.input(4000)
        kept = build.op("dot_general", x, size_bytes=4000, **exchanged)
        loss = build.op("dot_general", kept, size_bytes=4)
        gradient = build.op("dot_general", loss, kept, size_bytes=4000, phase=Phase.BACKWARD)
        graph = build.graph(gradient)
        laid_out = schedule(graph, GraphPlan(fingerprint="", decisions={kept: Recompute()}, stages=(0,)))
        found = replay(graph, laid_out, fusion=fuse(graph), arithmetic=arithmetic_costs(graph, rates), rates=rates)
        return found.step_s, found.recompute_s

    step_s, recompute_s = seconds()
    summed_s, summed_again_s = seconds(summed=Exchange(10**6))
    gathered_s, gathered_again_s = seconds(gathered=Exchange(10**6))
    assert summed_s - step_s == pytest.approx(2 * 1e-2)
    assert summed_again_s - recompute_s == pytest.approx(1e-2)
    assert gathered_s - step_s == pytest.approx(1e-2)  # the backward gathers what it reads anyway
    assert gathered_again_s == pytest.approx(recompute_s)


def test_a_body_takes_its_workspace_while_it_runs():
    build = Builder()
    x = build.op("while", build.input(4), size_bytes=4, workspace_bytes=10**6, traffic_bytes=10**9)
    got = replayed(build.graph(x))
    assert got.peak_bytes == 10**6
    assert got.step_s >= 10**9 / RATES.memory_bandwidth_bytes_per_s
