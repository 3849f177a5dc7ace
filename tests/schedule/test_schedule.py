"""The order of steps under a plan: golden schedules by hand, then the rules on random graphs."""

import sys
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, strategies as st

from jaxckpt._errors import GraphError
from jaxckpt.ir import GraphPlan, Loop, Offload, Phase, Recompute, Save
from jaxckpt.schedule import Barrier, Run, schedule
from tests.graphs import Builder, chain, graphs
from tests.residuals import residuals
from tests.schedule.as_text import as_text


def plan_of(graph, *, drop=(), save=(), stages=(0,)):
    decisions = {v: Recompute() for v in drop} | {v: Save() for v in save}
    return GraphPlan(fingerprint=graph.fingerprint, decisions=decisions, stages=tuple(stages))


def droppable(graph):
    return [r.value for r in residuals(graph) if not graph.ops[r.op].effects]


@st.composite
def planned(draw):
    graph = draw(graphs())
    choices = {v: draw(st.sampled_from([None, Save(), Recompute()])) for v in droppable(graph)}
    forward = [op.id for op in graph.ops if op.phase is Phase.FORWARD]
    stages = sorted({0, *draw(st.lists(st.sampled_from(forward), max_size=4))})
    decisions = {v: d for v, d in choices.items() if d is not None}
    return graph, GraphPlan(fingerprint=graph.fingerprint, decisions=decisions, stages=tuple(stages))


@pytest.mark.parametrize(
    ("decisions", "stages"),
    [
        ({1: Save(), 3: Recompute()}, (0,)),
        ({2: Recompute()}, (0,)),
        ({1: Recompute(), 2: Recompute()}, (0,)),
        ({1: Recompute(), 2: Save(), 3: Recompute()}, (0,)),
        ({1: Recompute(), 2: Recompute(), 3: Recompute()}, (0, 2)),
        ({2: Offload(prefetch=0)}, (0, 1, 2, 3)),
    ],
)
def test_the_documented_schedules_are_made(decisions, stages):
    graph = chain(4)
    plan = GraphPlan(fingerprint=graph.fingerprint, decisions=decisions, stages=stages)
    assert "  ".join(as_text(schedule(graph, plan))) in sys.modules[schedule.__module__].__doc__


def test_a_body_recomputes_what_it_reads_of_another_body():
    graph = chain(4)
    loops = (Loop(id=0, length=3, reverse=False), Loop(id=1, length=3, reverse=True))
    in_loops = replace(
        graph, ops=tuple(replace(op, loop=int(op.phase is Phase.BACKWARD)) for op in graph.ops), loops=loops
    )
    assert "  ".join(as_text(schedule(in_loops, plan_of(in_loops, drop=[2])))) == "0  1  2  3  4  5  1*  6  7"


def test_a_dropped_value_is_recomputed_before_its_reader():
    graph = chain(3)
    # Values: 0 the input, 1-3 the products, 4 the first cotangent (of op 3), 5 and 6 the others.
    assert as_text(schedule(graph, plan_of(graph, drop=[2]))) == [
        "0", "1", "2", "3", "barrier [1] after 4", "1*", "4", "5",
    ]  # fmt: skip


def test_a_stage_recomputes_all_it_dropped_behind_one_barrier():
    graph = chain(4)
    steps = as_text(schedule(graph, plan_of(graph, drop=[1, 2, 3])))
    assert steps == ["0", "1", "2", "3", "4", "barrier [0] after 5", "0*", "1*", "2*", "5", "6", "7"]


def test_each_stage_waits_for_its_own_cotangent():
    graph = chain(4)
    steps = as_text(schedule(graph, plan_of(graph, drop=[1, 3], save=[2], stages=(0, 2))))
    assert steps == [
        "0", "1", "pin [2]", "2", "3", "4", "barrier [2] after 5", "2*", "5", "6",
        "barrier [0] after 7", "0*", "7",
    ]  # fmt: skip


def test_clones_of_one_array_start_behind_one_barrier():
    """Two dropped values that are computed from one saved array; the second is read a product later than the first."""
    build = Builder()
    x = build.input(4000)
    saved = build.op("dot_general", x, size_bytes=4000)
    first, second = (build.op("tanh", saved, size_bytes=4000) for _ in range(2))
    end = build.op("dot_general", first, second, size_bytes=4000)
    cotangent = build.op("dot_general", end, size_bytes=4000, phase=Phase.BACKWARD)
    cotangent = build.op("dot_general", second, cotangent, size_bytes=4000, phase=Phase.BACKWARD)
    graph = build.graph(build.op("dot_general", first, cotangent, size_bytes=4000, phase=Phase.BACKWARD))
    steps = as_text(schedule(graph, plan_of(graph, drop=[first, second], save=[saved])))
    assert [step for step in steps if step.startswith("barrier")] == ["barrier [1] after 5"]


def test_clones_that_one_kernel_reads_start_behind_one_barrier():
    """Dropout: the mask and the value below it have no clone in common, and one kernel multiplies with both."""
    build = Builder()
    x, key = build.input(4000), build.input(8)
    saved = build.op("dot_general", x, size_bytes=4000)
    active = build.op("tanh", saved, size_bytes=4000)
    mask = build.op("random_bits", key, size_bytes=4000)
    end = build.op("dot_general", build.op("mul", active, mask, size_bytes=4000), size_bytes=4000)
    product = build.op("dot_general", end, size_bytes=4000, phase=Phase.BACKWARD)
    masked = build.op("mul", product, mask, size_bytes=4000, phase=Phase.BACKWARD)
    cotangent = build.op("mul", masked, active, size_bytes=4000, phase=Phase.BACKWARD)
    graph = build.graph(build.op("dot_general", cotangent, x, size_bytes=4000, phase=Phase.BACKWARD))
    steps = as_text(schedule(graph, plan_of(graph, drop=[active, mask], save=[saved])))
    barriers = [step for step in steps if step.startswith("barrier")]
    assert len(barriers) == 1
    assert barriers[0].endswith(f"after {product}")


@pytest.mark.parametrize(("size_bytes", "starts_earlier"), [(250, True), (251, False)])
def test_small_clones_start_behind_the_barrier_before(size_bytes, starts_earlier):
    """Positions of a gather: its gradient is the second product of the backward, of 4,000 bytes."""
    build = Builder()
    x, index = build.input(4000), build.input(size_bytes)
    saved = build.op("dot_general", x, size_bytes=4000)
    active = build.op("tanh", saved, size_bytes=4000)
    positions = build.op("add", index, size_bytes=size_bytes)
    end = build.op("dot_general", active, positions, size_bytes=4000)
    first = build.op("dot_general", end, size_bytes=4000, phase=Phase.BACKWARD)
    second = build.op("dot_general", first, active, size_bytes=4000, phase=Phase.BACKWARD)
    graph = build.graph(build.op("scatter-add", second, positions, size_bytes=4000, phase=Phase.BACKWARD))
    steps = as_text(schedule(graph, plan_of(graph, drop=[active, positions], save=[saved])))
    barriers = [step for step in steps if step.startswith("barrier")]
    if starts_earlier:
        assert barriers == [f"barrier [{index}, {saved}] after {first}"]
    else:
        assert barriers == [f"barrier [{saved}] after {first}", f"barrier [{index}] after {second}"]


def test_a_barrier_waits_for_no_value_inside_a_kernel():
    """The elementwise op between the last product and the reader is no frontier: a barrier would split its kernel."""
    build = Builder()
    x = build.input(4000)
    wide = build.op("dot_general", x, size_bytes=4000)
    dropped = build.op("tanh", wide, size_bytes=4000)
    end = build.op("dot_general", dropped, size_bytes=4000)
    product = build.op("dot_general", end, size_bytes=4000, phase=Phase.BACKWARD)
    scaled = build.op("mul", product, wide, size_bytes=4000, phase=Phase.BACKWARD)
    cotangent = build.op("mul", scaled, dropped, product, size_bytes=4000, phase=Phase.BACKWARD)
    graph = build.graph(build.op("dot_general", cotangent, x, size_bytes=4000, phase=Phase.BACKWARD))
    steps = as_text(schedule(graph, plan_of(graph, drop=[dropped], save=[wide])))
    assert f"barrier [{wide}] after {product}" in steps


def test_a_later_visit_to_a_stage_recomputes_it_again():
    """The gradient of a gradient goes over the layers from the first to the last, and back."""
    build = Builder()
    x = build.input(4000)
    first = build.op("tanh", build.op("dot_general", x, size_bytes=4000), size_bytes=4000)
    second = build.op("tanh", build.op("dot_general", first, size_bytes=4000), size_bytes=4000)
    cotangent = build.op("dot_general", second, size_bytes=4000)
    for layer in (first, second, second, first):
        for name in ("mul", "dot_general"):
            cotangent = build.op(name, cotangent, layer, size_bytes=4000, phase=Phase.BACKWARD)
    graph = build.graph(cotangent)
    plan = plan_of(graph, drop=[first, second], stages=(0, 2))
    clones = [step.op for step in schedule(graph, plan).steps if isinstance(step, Run) and step.is_clone]
    assert clones.count(graph.producer[first]) == 3, "for itself twice, and once on the way to the second layer"
    assert clones.count(graph.producer[second]) == 1


@pytest.mark.parametrize("primitive", ["convert_element_type", "gather"])
def test_a_barrier_passes_the_smaller_value_before_a_cast_or_a_gather(primitive):
    """The backward of a normalisation in float32, or of messages on edges: the wide cotangent is not in memory."""
    build = Builder()
    x, indices = build.input(4000), [build.input(10)] if primitive == "gather" else []
    wide = build.op("dot_general", x, size_bytes=4000)
    dropped = build.op("tanh", wide, size_bytes=4000)
    end = build.op("dot_general", dropped, size_bytes=4000)
    product = build.op("dot_general", end, size_bytes=2000, phase=Phase.BACKWARD)
    narrow = build.op("add_any", product, build.input(2000), size_bytes=2000, phase=Phase.BACKWARD)
    widened = build.op(primitive, narrow, *indices, size_bytes=4000, phase=Phase.BACKWARD)
    cotangent = build.op("mul", widened, dropped, size_bytes=4000, phase=Phase.BACKWARD)
    graph = build.graph(build.op("dot_general", cotangent, x, size_bytes=4000, phase=Phase.BACKWARD))
    steps = schedule(graph, plan_of(graph, drop=[dropped], save=[wide])).steps
    behind = next(step for step in steps if isinstance(step, Barrier) and step.is_in_backward)
    assert narrow in behind.reads
    assert behind.trigger is None
    again, reader = (
        next(step for step in steps if isinstance(step, Run) and step.op == graph.producer[value] and condition(step))
        for value, condition in ((widened, lambda step: step.is_clone), (cotangent, lambda step: True))
    )
    assert again.reads == (behind.writes[behind.reads.index(narrow)], *indices)
    assert reader.reads[0] == again.writes[0]


def test_a_barrier_waits_for_the_loss_where_the_cotangent_is_a_literal():
    """The gradient of a mean: nothing of the forward pass leads to the backward's first value."""
    build = Builder()
    x = build.input(4000)
    wide = build.op("dot_general", x, size_bytes=4000)
    loss = build.op("reduce_sum", wide, size_bytes=4)
    literal = build.op("broadcast_in_dim", size_bytes=4000, phase=Phase.BACKWARD)
    cotangent = build.op("mul", literal, wide, size_bytes=4000, phase=Phase.BACKWARD)
    graph = build.graph(loss, build.op("dot_general", cotangent, x, size_bytes=4000, phase=Phase.BACKWARD))
    assert f"barrier [{x}] after {loss}" in as_text(schedule(graph, plan_of(graph, drop=[wide])))


def test_a_barrier_waits_for_the_loss_until_the_backward_has_a_value_in_memory():
    """The gradient of a mean of squares: one kernel computes it and the gradients of the activations before it."""
    build = Builder()
    x = build.input(4000)
    wide = build.op("dot_general", x, size_bytes=4000)
    active, slope = (build.op(name, wide, size_bytes=4000) for name in ("tanh", "sin"))
    loss = build.op("reduce_sum", active, size_bytes=4)
    twice = build.op("mul", active, size_bytes=4000, phase=Phase.BACKWARD)
    cotangent = build.op("mul", twice, slope, size_bytes=4000, phase=Phase.BACKWARD)
    graph = build.graph(loss, build.op("dot_general", cotangent, x, size_bytes=4000, phase=Phase.BACKWARD))
    assert f"barrier [{wide}] after {loss}" in as_text(schedule(graph, plan_of(graph, drop=[slope], save=[wide])))


def test_the_first_barrier_passes_losses_and_metrics():
    """XLA may compute what nothing reads at the end of the step, and keep what it is computed of."""
    build = Builder()
    x = build.input(4000)
    first = build.op("dot_general", x, size_bytes=4000)
    second = build.op("dot_general", first, size_bytes=4000)
    end = build.op("dot_general", second, size_bytes=4000)
    loss, metric = build.op("reduce_sum", end, size_bytes=4), build.op("argmax", end, size_bytes=4)
    cotangent = build.op("dot_general", end, size_bytes=4000, phase=Phase.BACKWARD)
    behind = build.op("dot_general", cotangent, second, size_bytes=4000, phase=Phase.BACKWARD)
    graph = build.graph(loss, metric, build.op("dot_general", behind, first, size_bytes=4000, phase=Phase.BACKWARD))
    plan = plan_of(graph, drop=[first, second], stages=(0, graph.producer[second]))
    barriers = [step for step in schedule(graph, plan).steps if isinstance(step, Barrier)]
    assert [barrier.trigger for barrier in barriers] == [cotangent, behind]
    passed = [{loss, metric}.intersection(barrier.reads) for barrier in barriers]
    assert passed == [{loss, metric}, set()]


def test_a_barrier_waits_for_no_value_that_a_scatter_computes():
    build = Builder()
    x, places = build.input(4000), build.input(8)
    wide = build.op("dot_general", x, size_bytes=4000)
    dropped = build.op("tanh", wide, size_bytes=4000)
    end = build.op("dot_general", dropped, size_bytes=4000)
    product = build.op("dot_general", end, size_bytes=4000, phase=Phase.BACKWARD)
    scaled = build.op("mul", product, wide, size_bytes=4000, phase=Phase.BACKWARD)
    summed = build.op("scatter-add", dropped, places, scaled, size_bytes=4000, phase=Phase.BACKWARD)
    graph = build.graph(build.op("dot_general", summed, product, size_bytes=4000, phase=Phase.BACKWARD))
    steps = as_text(schedule(graph, plan_of(graph, drop=[dropped], save=[wide])))
    assert f"barrier [{wide}] after {product}" in steps


def with_gradient(write, *, size_bytes=40):
    """A graph of two products with one weight, its schedule with both recomputed in stages of their own, and `made`.

    `write(build, cotangent, x)` adds the ops of the weight's gradient, and returns what they write: the gradient last.
    """
    build = Builder()
    x, weight = build.input(4000), build.input(size_bytes)
    first = build.op("dot_general", x, weight, size_bytes=4000)
    second = build.op("dot_general", first, weight, size_bytes=4000)
    late = build.op("mul", second, second, size_bytes=4000, phase=Phase.BACKWARD)
    made = write(build, late, x)
    early = build.op("dot_general", late, first, size_bytes=4000, phase=Phase.BACKWARD)
    updated = build.op("sub", weight, made[-1], size_bytes=size_bytes, phase=Phase.UPDATE)
    graph = build.graph(early, updated)
    laid_out = schedule(graph, plan_of(graph, drop=[first, second], stages=(0, 1)))
    check_order(graph, laid_out)
    return laid_out, made


def last_barrier(laid_out):
    """The last barrier of a schedule, and the values that pass it."""
    barrier = [step for step in laid_out.steps if isinstance(step, Barrier)][-1]
    return barrier, [laid_out.origin[i] for i in barrier.reads]


@pytest.mark.parametrize(("size_bytes", "passes"), [(40, True), (4000, False)])
def test_a_small_gradient_of_a_weight_is_there_before_the_next_stage(size_bytes, passes):
    """Compilers would postpone its product to the end, and keep what it is computed of."""

    def write(build, cotangent, x):
        return [build.op("dot_general", cotangent, x, size_bytes=size_bytes, phase=Phase.BACKWARD)]

    laid_out, (gradient,) = with_gradient(write, size_bytes=size_bytes)
    opens_first, passed = last_barrier(laid_out)
    assert (gradient in passed) is passes
    assert not passes or opens_first.writes[-1] in laid_out.steps[-1].reads


@pytest.mark.parametrize(("size_bytes", "is_early"), [(2**20, True), (2**20 - 4, False)])
def test_a_large_parameter_is_updated_before_the_next_stage(size_bytes, is_early):
    """Compilers would put the update at the end, and keep the gradient."""

    def write(build, cotangent, x):
        return [build.op("dot_general", cotangent, x, size_bytes=size_bytes, phase=Phase.BACKWARD)]

    laid_out, (gradient,) = with_gradient(write, size_bytes=size_bytes)
    barrier, passed = last_barrier(laid_out)
    (update,) = (step for step in laid_out.steps if isinstance(step, Run) and gradient in step.reads)
    (updated,) = update.writes
    assert (updated in passed) is is_early
    assert (laid_out.steps.index(update) < laid_out.steps.index(barrier)) is is_early
    assert gradient not in passed
    assert laid_out.outputs[-1] == (barrier.writes[passed.index(updated)] if is_early else updated)


def test_a_small_sum_of_two_gradients_of_a_weight_is_there_before_the_next_stage():
    """A gradient of a gradient gives a weight two products; the sum ends with the later one."""

    def write(build, cotangent, x):
        of_weight = {"size_bytes": 40, "phase": Phase.BACKWARD}
        products = [build.op("dot_general", cotangent, of, **of_weight) for of in (cotangent, x)]
        return [*products, build.op("add_any", *products, **of_weight)]

    laid_out, (*products, gradient) = with_gradient(write)
    _, passed = last_barrier(laid_out)
    assert gradient in passed
    assert not set(products) & set(passed)


def test_a_gradient_passes_a_barrier_as_the_view_that_is_read_later():
    """Nobody reads the product behind the barrier, and XLA drops operands that nobody reads."""

    def write(build, cotangent, x):
        product = build.op("dot_general", cotangent, x, size_bytes=40, phase=Phase.BACKWARD)
        return [product, build.op("transpose", product, size_bytes=40, phase=Phase.BACKWARD)]

    laid_out, (product, gradient) = with_gradient(write)
    _, passed = last_barrier(laid_out)
    assert gradient in passed and product not in passed


@pytest.mark.parametrize("donated", [True, False])
def test_the_backward_reads_a_weight_that_is_updated_in_place_behind_the_barrier_of_its_stage(donated):
    """XLA copies such a weight; without the barrier the copy begins with the step."""
    build = Builder()
    x, up, down = build.input(4000), build.input(4000), build.input(4000)
    hidden = build.op("dot_general", x, up, size_bytes=4000)
    out = build.op("dot_general", hidden, down, size_bytes=4000)
    cotangent = build.op("mul", out, size_bytes=4000, phase=Phase.BACKWARD)
    gradient = build.op("dot_general", cotangent, hidden, size_bytes=4000, phase=Phase.BACKWARD)
    into_hidden = build.op("dot_general", cotangent, down, size_bytes=4000, phase=Phase.BACKWARD)
    updated = build.op("sub", down, gradient, size_bytes=4000, phase=Phase.UPDATE)
    graph = build.graph(into_hidden, updated, donated=[down] if donated else [])
    laid_out = schedule(graph, plan_of(graph, drop=[hidden], save=[out]))
    check_order(graph, laid_out)
    barrier = next(step for step in laid_out.steps if isinstance(step, Barrier) and step.is_in_backward)
    assert (down in barrier.reads) is donated
    of_backward, of_update = (
        next(step for step in laid_out.steps if isinstance(step, Run) and step.op == graph.producer[written])
        for written in (into_hidden, updated)
    )
    assert (down in of_backward.reads) is not donated
    assert down in of_update.reads


def test_a_barrier_waits_for_no_value_that_is_read_no_more():
    """XLA drops operands of a barrier that nobody reads behind it: the trigger is the end of the chain."""
    build = Builder()
    x = build.input(4000)
    dropped = build.op("tanh", build.op("dot_general", x, size_bytes=4000), size_bytes=4000)
    end = build.op("dot_general", dropped, size_bytes=4000)
    product = build.op("dot_general", end, size_bytes=4000, phase=Phase.BACKWARD)
    scaled = build.op("mul", product, x, size_bytes=4000, phase=Phase.BACKWARD)
    cotangent = build.op("mul", scaled, dropped, size_bytes=4000, phase=Phase.BACKWARD)
    graph = build.graph(build.op("dot_general", cotangent, x, size_bytes=4000, phase=Phase.BACKWARD))
    steps = as_text(schedule(graph, plan_of(graph, drop=[dropped])))
    assert [step for step in steps if step.endswith(f"after {scaled}")]


def test_the_largest_elements_of_an_array_are_pinned_without_a_decision():
    build = Builder()
    op = partial(build.op, size_bytes=4000)
    scores = op("sin", build.input(4000))
    index = op("top_k", scores, size_bytes=40)
    picked = op("sin", index)
    seed = op("sin", picked, phase=Phase.BACKWARD)
    graph = build.graph(op("mul", seed, scores, picked, phase=Phase.BACKWARD))
    assert as_text(schedule(graph, plan_of(graph))) == ["0", "1", "2", "3", "4"]
    steps = as_text(schedule(graph, plan_of(graph, drop=[scores])))
    assert steps[:4] == ["0", "1", f"pin [{index}]", "2"]


def test_the_largest_elements_are_pinned_in_clones_too():
    build = Builder()
    op = partial(build.op, size_bytes=4000)
    index = op("top_k", build.input(4000), size_bytes=40)
    picked = op("sin", index)
    seed = op("sin", picked, phase=Phase.BACKWARD)
    graph = build.graph(op("mul", seed, picked, phase=Phase.BACKWARD))
    laid_out = schedule(graph, plan_of(graph, drop=[index, picked]))
    pins = [step for step in laid_out.steps if isinstance(step, Barrier) and step.why == "pin"]
    first, second = (step for step in laid_out.steps if isinstance(step, Run) and step.op == graph.producer[index])
    assert [pin.reads for pin in pins] == [first.writes, second.writes]
    assert second.is_clone
    readers = [step.reads for step in laid_out.steps if isinstance(step, Run) and step.op == graph.producer[picked]]
    assert readers == [pin.writes for pin in pins]


def test_values_are_pinned_only_where_some_are_dropped():
    graph = chain(3)
    assert as_text(schedule(graph, plan_of(graph, save=[1, 2]))) == ["0", "1", "2", "3", "4", "5"]
    assert "pin [1]" in as_text(schedule(graph, plan_of(graph, drop=[2], save=[1])))


def test_a_clone_reads_the_saved_value_behind_its_barrier():
    graph = chain(3)
    laid_out = schedule(graph, plan_of(graph, drop=[2], save=[1]))
    pin, wait = (step for step in laid_out.steps if isinstance(step, Barrier))
    copy = next(step for step in laid_out.steps if isinstance(step, Run) and step.is_clone)
    assert wait.reads == pin.writes
    assert copy.reads == wait.writes


def test_values_of_a_second_forward_wait_for_their_own_reader():
    """Two gradients in one step: the second forward pass stands behind the first backward."""
    build = Builder()
    x = build.input(4000)
    first = build.op("sin", x, size_bytes=4000)
    cotangent = build.op("mul", first, x, size_bytes=4000, phase=Phase.BACKWARD)
    second = build.op("sin", cotangent, size_bytes=4000)
    third = build.op("cos", second, size_bytes=4000)
    last = build.op("mul", third, cotangent, size_bytes=4000, phase=Phase.BACKWARD)
    graph = build.graph(last)
    laid_out = schedule(graph, plan_of(graph, drop=[first, third]))
    check_order(graph, laid_out)
    assert as_text(laid_out) == [
        "0", "barrier [0]", "0*", "1", "2", "3", f"barrier [{cotangent}] after {cotangent}", "2*", "3*", "4",
    ]  # fmt: skip


def test_a_pooling_gradient_reads_behind_its_cotangent():
    build = Builder()
    x = build.input(4000)
    early, kept = (build.op("dot_general", x, size_bytes=4000) for _ in range(2))
    pooled = build.op("reduce_window_max", kept, size_bytes=1000)
    cotangent = build.op("dot_general", early, pooled, size_bytes=1000, phase=Phase.BACKWARD)
    spread = build.op("select_and_scatter_add", cotangent, kept, size_bytes=4000, phase=Phase.BACKWARD)
    graph = build.graph(spread)
    assert as_text(schedule(graph, plan_of(graph, drop=[early], save=[kept])))[-3:] == [
        "3", f"barrier [{kept}] after {cotangent}", "4",
    ]  # fmt: skip
    assert as_text(schedule(graph, plan_of(graph, save=[kept]))) == ["0", "1", "2", "3", "4"]


def test_a_shared_gradient_passes_the_barriers_on_its_way():
    """Two layers share a bias: what the later one adds to its gradient is there before the earlier one begins."""
    build = Builder()
    x, bias = build.input(4000), build.input(4000)
    first = build.op("dot_general", x, bias, size_bytes=4000)
    second = build.op("dot_general", first, bias, size_bytes=4000)
    late = build.op("mul", second, second, size_bytes=4000, phase=Phase.BACKWARD)
    shared = build.op("reduce_sum", late, size_bytes=4000, phase=Phase.BACKWARD)
    scaled = build.op(
        "sin", build.op("sin", late, size_bytes=4000, phase=Phase.BACKWARD), size_bytes=4000, phase=Phase.BACKWARD
    )
    cotangent = build.op("dot_general", scaled, first, size_bytes=4000, phase=Phase.BACKWARD)
    early = build.op("dot_general", cotangent, first, size_bytes=4000, phase=Phase.BACKWARD)
    total = build.op("add_any", shared, early, size_bytes=4000, phase=Phase.BACKWARD)
    graph = build.graph(total)
    laid_out = schedule(graph, plan_of(graph, drop=[first, second], stages=(0, 1)))
    check_order(graph, laid_out)
    opens_first = [step for step in laid_out.steps if isinstance(step, Barrier)][-1]
    assert [laid_out.origin[i] for i in opens_first.reads] == [x, bias, shared]
    adds = laid_out.steps[-1]
    assert isinstance(adds, Run)
    assert opens_first.writes[-1] in adds.reads


def test_a_barrier_waits_for_a_cotangent_and_no_sum():
    """Layers share their weight: the chain of sums of its gradient is longer than that of cotangents."""
    build = Builder()
    x, weight = build.input(4000), build.input(4000)
    first = build.op("dot_general", x, weight, size_bytes=4000)
    second = build.op("dot_general", first, weight, size_bytes=4000)
    cotangent = build.op("mul", second, second, size_bytes=4000, phase=Phase.BACKWARD)
    shared = build.op("dot_general", cotangent, cotangent, size_bytes=4000, phase=Phase.BACKWARD)
    scaled = build.op("mul", cotangent, first, size_bytes=4000, phase=Phase.BACKWARD)
    early = build.op("dot_general", scaled, x, size_bytes=4000, phase=Phase.BACKWARD)
    graph = build.graph(build.op("add_any", shared, early, size_bytes=4000, phase=Phase.BACKWARD))
    laid_out = schedule(graph, plan_of(graph, drop=[first, second], stages=(0, 1)))
    check_order(graph, laid_out)
    opens_first = [step for step in laid_out.steps if isinstance(step, Barrier)][-1]
    assert laid_out.origin[opens_first.trigger] == cotangent
    assert shared in [laid_out.origin[i] for i in opens_first.reads]
    adds = laid_out.steps[-1]
    assert isinstance(adds, Run)
    assert opens_first.writes[-1] in adds.reads


def test_a_sum_before_the_next_product_passes_no_barrier():
    build = Builder()
    x = build.input(4000)
    first = build.op("sin", x, size_bytes=4000)
    part = build.op("mul", x, x, size_bytes=4000, phase=Phase.BACKWARD)
    other = build.op("mul", first, x, size_bytes=4000, phase=Phase.BACKWARD)
    graph = build.graph(build.op("add_any", part, other, size_bytes=4000, phase=Phase.BACKWARD))
    laid_out = schedule(graph, plan_of(graph, drop=[first]))
    passed = [laid_out.origin[i] for step in laid_out.steps if isinstance(step, Barrier) for i in step.reads]
    assert part not in passed


def test_a_clone_does_not_replace_the_saved_one_of_two_results():
    """Left is saved, right is dropped: the copy of their op makes both, but what follows left reads the saved one."""
    build = Builder()
    x = build.input(4000)
    left = build.op("sort", x, size_bytes=2000)
    right = build.value(2000)
    build.ops[0] = replace(build.ops[0], writes=(left, right))
    followed = build.op("sin", left, size_bytes=2000)
    cotangent = build.op("mul", right, size_bytes=2000, phase=Phase.BACKWARD)
    graph = build.graph(build.op("mul", followed, cotangent, size_bytes=2000, phase=Phase.BACKWARD))
    laid_out = schedule(graph, plan_of(graph, drop=[right, followed], save=[left]))
    check_order(graph, laid_out)
    pin, wait = (step for step in laid_out.steps if isinstance(step, Barrier))
    sort_again, sin_again = (step for step in laid_out.steps if isinstance(step, Run) and step.is_clone)
    assert wait.reads == (x, *pin.writes)
    assert sort_again.reads == wait.writes[:1]
    assert sin_again.reads == wait.writes[1:]


def test_argument_derived_values_open_no_stage():
    """A head tied to the embedding reads the embedding's transpose, which the last block's stage holds."""
    build = Builder()
    table = build.input(4000)
    hidden = build.op("dot_general", table, size_bytes=4000)
    inside = build.op("sin", hidden, size_bytes=4000)
    turned = build.op("transpose", table, size_bytes=4000)
    logits = build.op("dot_general", inside, turned, size_bytes=4000)
    late = build.op("dot_general", logits, turned, size_bytes=4000, phase=Phase.BACKWARD)
    graph = build.graph(build.op("mul", late, inside, size_bytes=4000, phase=Phase.BACKWARD))
    laid_out = schedule(graph, plan_of(graph, drop=[inside, turned], stages=[0, graph.producer[logits]]))
    check_order(graph, laid_out)
    order = [(step.op, step.is_clone) for step in laid_out.steps if isinstance(step, Run)]
    of_head = order.index((graph.producer[late], False))
    assert order[of_head - 1] == (graph.producer[turned], True)
    assert order.index((graph.producer[inside], True)) > of_head


def test_a_weight_whose_cast_was_recomputed_by_itself_passes_no_barrier_again():
    """Behind its new value XLA would copy one of them: they share their memory."""
    build = Builder()
    weight = build.input(4000)
    cast = build.op("convert_element_type", weight, size_bytes=2000)
    hidden = build.op("dot_general", build.input(4000), size_bytes=4000)
    inside = build.op("sin", hidden, size_bytes=4000)
    wide = build.op("mul", inside, cast, size_bytes=4000)
    last = build.op("dot_general", wide, size_bytes=4000)
    cotangent = build.op("dot_general", last, cast, size_bytes=4000, phase=Phase.BACKWARD)
    graph = build.graph(build.op("dot_general", cotangent, wide, size_bytes=4000, phase=Phase.BACKWARD))
    laid_out = schedule(graph, plan_of(graph, drop=[cast, inside, wide], stages=[0, graph.producer[last]]))
    check_order(graph, laid_out)
    behind = [step for step in laid_out.steps if isinstance(step, Barrier) and step.is_in_backward]
    passed = [[laid_out.origin[i] for i in step.reads] for step in behind]
    assert [weight in values for values in passed] == [True, True], "the second clone of the cast is read"
    graph = build.graph(build.op("dot_general", cotangent, inside, size_bytes=4000, phase=Phase.BACKWARD))
    laid_out = schedule(graph, plan_of(graph, drop=[cast, inside], save=[wide], stages=[0, graph.producer[last]]))
    behind = [step for step in laid_out.steps if isinstance(step, Barrier) and step.is_in_backward]
    passed = [[laid_out.origin[i] for i in step.reads] for step in behind]
    assert [weight in values for values in passed] == [True, False]


@pytest.mark.parametrize("kind", ["input", "effects", "backward"])
def test_values_that_cannot_be_recomputed_are_refused(kind):
    build = Builder()
    x = build.input(4000)
    loud = build.op("io", x, size_bytes=4000, effects=("io",))
    late = build.op("mul", loud, x, size_bytes=4000, phase=Phase.BACKWARD)
    graph = build.graph(build.op("mul", late, loud, size_bytes=4000, phase=Phase.BACKWARD))
    value = {"input": x, "effects": loud, "backward": late}[kind]
    with pytest.raises(GraphError, match=f"value {value} cannot be recomputed"):
        schedule(graph, plan_of(graph, drop=[value]))


def check_order(graph, laid_out):
    """Every instance is written once, and before it is read; a copy is of the op's own values."""
    written = set(graph.inputs) | set(graph.constants)
    for step in laid_out.steps:
        reads = (*step.reads, *((step.trigger,) if isinstance(step, Barrier) and step.trigger is not None else ()))
        assert set(reads) <= written
        assert not set(step.writes) & written
        written.update(step.writes)
        if isinstance(step, Run):
            op = graph.ops[step.op]
            assert tuple(laid_out.origin[i] for i in step.reads) == op.reads
            assert tuple(laid_out.origin[i] for i in step.writes) == op.writes
    assert set(laid_out.outputs) <= written
    assert tuple(laid_out.origin[i] for i in laid_out.outputs) == graph.outputs


@given(planned())
def test_every_instance_is_written_before_it_is_read(case):
    graph, plan = case
    check_order(graph, schedule(graph, plan))


@given(planned())
def test_every_op_runs_once_in_order_and_effects_have_no_clone(case):
    graph, plan = case
    runs = [step for step in schedule(graph, plan).steps if isinstance(step, Run)]
    assert [run.op for run in runs if not run.is_clone] == list(range(len(graph.ops)))
    assert not any(graph.ops[run.op].effects for run in runs if run.is_clone)


@given(planned())
def test_ops_after_forward_never_read_dropped_originals(case):
    graph, plan = case
    laid_out = schedule(graph, plan)
    dropped = {v for v, d in plan.decisions.items() if isinstance(d, Recompute)}
    for step in laid_out.steps:
        if isinstance(step, Run) and not step.is_clone and graph.ops[step.op].phase is not Phase.FORWARD:
            assert not dropped & set(step.reads)


@given(planned())
def test_barriers_of_stages_hold_only_available_values(case):
    """A barrier in the backward holds arguments, saved values, results and residuals; nothing new lives long."""
    graph, plan = case
    laid_out = schedule(graph, plan)
    dropped = {v for v, d in plan.decisions.items() if isinstance(d, Recompute)}
    kept = {*graph.inputs, *graph.constants, *graph.outputs, *plan.decisions}
    kept |= {r.value for r in residuals(graph)}
    kept |= {v for op in graph.ops if op.effects or op.phase is not Phase.FORWARD for v in op.writes}
    for step in laid_out.steps:
        if isinstance(step, Barrier) and step.trigger is not None:
            assert {laid_out.origin[i] for i in step.reads} <= kept - dropped


@given(planned())
def test_a_plan_that_drops_nothing_changes_nothing(case):
    graph, plan = case
    kept = {v: d for v, d in plan.decisions.items() if isinstance(d, Save)}
    laid_out = schedule(graph, GraphPlan(fingerprint=plan.fingerprint, decisions=kept, stages=plan.stages))
    assert [step.op for step in laid_out.steps] == [op.id for op in graph.ops]
    assert laid_out.outputs == graph.outputs


def test_arguments_that_clones_only_repeat_pass_no_barrier():
    """A bias waits with what it is added to; one that an op of arguments alone reads has to wait."""
    build = Builder()
    x, weight, bias, added = build.input(4000), build.input(4000), build.input(40), build.input(40)
    product = build.op("dot_general", x, weight, size_bytes=4000)
    rows = build.op("broadcast_in_dim", bias, size_bytes=4000)
    first = build.op("add", product, rows, size_bytes=4000)
    of_arguments = build.op("exp", added, size_bytes=40)
    second = build.op("mul", first, of_arguments, size_bytes=4000)
    gradient = build.op("dot_general", second, first, size_bytes=4000, phase=Phase.BACKWARD)
    graph = build.graph(build.op("dot_general", gradient, second, size_bytes=4000, phase=Phase.BACKWARD))
    laid_out = schedule(graph, plan_of(graph, drop=[first, second]))
    check_order(graph, laid_out)
    (barrier,) = [step for step in laid_out.steps if isinstance(step, Barrier)]
    assert [laid_out.origin[i] for i in barrier.reads] == [x, weight, added]
