"""Materialised values: the rules of `fuse`, each on the smallest graph that shows it."""

from dataclasses import replace

import pytest
from hypothesis import given

from jaxckpt.cost import arithmetic_costs, fuse, replay
from jaxckpt.cost.fusion_analysis import FusionAnalysis
from jaxckpt.ir import GraphPlan, Phase, Recompute
from jaxckpt.schedule import Run, schedule
from tests.graphs import RATES, Builder, graphs


def test_operands_of_a_product_are_in_memory_views_of_them_not():
    build = Builder()
    product = build.op("dot_general", build.input(4000), size_bytes=4000)
    view = build.op("reshape", product, size_bytes=4000)
    activated = build.op("tanh", view, size_bytes=4000)
    out = build.op("dot_general", view, activated, size_bytes=4)
    materialised = fuse(build.graph(out)).materialised
    assert {product, activated, out} <= materialised
    assert view not in materialised


@pytest.mark.parametrize(("primitive", "is_loaded"), [("max", True), ("tanh", False)])
def test_a_product_applies_elementwise_ops_to_what_it_loads(primitive, is_loaded):
    """As XLA's matrix kernels do with a relu or a bias; what takes long they do not do for every product."""
    build = Builder()
    bias = build.input(40)
    product = build.op("dot_general", build.input(4000), size_bytes=4000)
    shifted = build.op("add", product, build.op("broadcast_in_dim", bias, size_bytes=4000), size_bytes=4000)
    activated = build.op(primitive, shifted, size_bytes=4000)
    others = [build.op("dot_general", activated, size_bytes=4) for _ in range(2)]
    fusion = fuse(build.graph(*others))
    assert (activated not in fusion.materialised) is is_loaded
    assert product in fusion.materialised
    assert set(fusion.sources[activated]) == ({product, bias} if is_loaded else {activated})


def test_a_product_loads_nothing_of_two_arrays_or_narrowed():
    build = Builder()
    left, right = (build.op("dot_general", build.input(4000), size_bytes=4000) for _ in range(2))
    gated = build.op("mul", left, right, size_bytes=4000)
    narrowed = build.op("convert_element_type", left, size_bytes=2000)
    out = build.op("dot_general", gated, narrowed, size_bytes=4)
    assert {gated, narrowed} <= fuse(build.graph(out)).materialised


def test_a_broadcast_that_a_product_reads_is_written_out():
    build = Builder()
    small = build.op("reduce_sum", build.input(4000), size_bytes=4)
    wide = build.op("broadcast_in_dim", small, size_bytes=4000)
    out = build.op("dot_general", wide, size_bytes=4)
    assert wide in fuse(build.graph(out)).materialised


def test_a_residual_stream_with_several_readers_is_in_memory():
    build = Builder()
    x = build.input(4000)
    branch = build.op("dot_general", x, size_bytes=4000)
    stream = build.op("add", x, branch, size_bytes=4000)
    readers = [build.op("reduce_sum", stream, size_bytes=4) for _ in range(3)]
    assert stream in fuse(build.graph(*readers)).materialised


@pytest.mark.parametrize(
    ("readers", "is_stored"),
    [
        ((("add", "sub"), ("sub", "mul")), False),  # each meets both sources, element by element
        ((("exp", "neg"), ("neg", "exp")), True),  # none does
        ((("add", "sub"), ("neg", "exp")), False),  # one does
        ((("concatenate", "sub"), ("concatenate", "mul")), True),  # where each element has another index
    ],
)
def test_a_value_is_computed_again_where_its_readers_read_its_sources_anyway(readers, is_stored):
    """As in the gradient of a gradient of `x * sigmoid(x)`."""
    build = Builder()
    left, right = (build.op("dot_general", build.input(4000), size_bytes=4000) for _ in range(2))
    gated = build.op("mul", left, right, size_bytes=4000)
    results = []
    for first, second in readers:
        meets = first in {"add", "sub", "concatenate"}
        inner = build.op(first, gated, *([left] if meets else []), size_bytes=4000)
        results.append(build.op(second, inner, *([right] if meets else []), size_bytes=4000))
    assert (gated in fuse(build.graph(*results)).materialised) is is_stored


def test_a_cast_with_several_readers_is_recomputed_in_each():
    build = Builder()
    product = build.op("dot_general", build.input(4000), size_bytes=4000)
    cast = build.op("convert_element_type", product, size_bytes=8000)
    readers = [build.op("reduce_sum", cast, size_bytes=4) for _ in range(3)]
    fusion = fuse(build.graph(*readers))
    assert cast not in fusion.materialised
    assert fusion.sources[cast] == {product: 4000}


def test_the_gradient_of_a_gather_scatters_into_the_other_addend():
    build = Builder()
    product = build.op("dot_general", build.input(4000), size_bytes=4000)
    wide = build.op("exp", product, size_bytes=8000)
    zeros = build.op("broadcast_in_dim", size_bytes=8000)
    index = build.op("reduce_max", product, size_bytes=4)
    scattered = build.op("scatter-add", zeros, index, size_bytes=8000)
    total = build.op("add_any", wide, scattered, size_bytes=8000)
    materialised = fuse(build.graph(build.op("dot_general", total, size_bytes=4))).materialised
    assert total in materialised and wide in materialised
    assert scattered not in materialised and zeros not in materialised


def rows(build, source, *, read_by_backward=False):
    """The sum of each row of a value and the value less it: the shape of a softmax."""
    scores = build.shaped("neg", source, shape=(10, 100))
    total = build.shaped("reduce_sum", scores, shape=(10,))
    wide = build.shaped("broadcast_in_dim", total, shape=(10, 100))
    weights = build.shaped("sub", scores, wide, shape=(10, 100))
    if read_by_backward:
        build.shaped("mul", total, shape=(10,), phase=Phase.BACKWARD)
    return total, build.shaped("dot_general", weights, shape=(10, 10))


def test_a_row_reduction_is_fused_into_what_reads_the_rows():
    build = Builder()
    product = build.shaped("dot_general", build.input(4000), shape=(10, 100))
    total, out = rows(build, product)
    fusion = fuse(build.graph(out))
    assert total not in fusion.materialised
    assert fusion.sources[total] == {product: 4000}
    assert total in fusion.rules.rows.values


def test_a_row_reduction_that_a_backward_reads_is_written():
    build = Builder()
    product = build.shaped("dot_general", build.input(4000), shape=(10, 100))
    total, out = rows(build, product, read_by_backward=True)
    fusion = fuse(build.graph(out, len(build.values) - 2))
    assert total in fusion.materialised
    assert total in fusion.rules.rows.values


def test_an_expensive_op_is_not_computed_in_two_kernels():
    build = Builder()
    product = build.op("dot_general", build.input(4000), size_bytes=4000)
    slow, quick, scaled = (build.op(name, product, size_bytes=8000) for name in ("erfc", "neg", "mul"))
    apart = build.op("tanh", scaled, size_bytes=8000)
    sums = [build.op("reduce_sum", v, size_bytes=4) for v in (slow, quick, apart, apart)]
    readers = [build.op("reduce_sum", v, total, size_bytes=4) for v, total in zip((slow, quick), sums, strict=False)]
    materialised = fuse(build.graph(*sums, *readers)).materialised
    assert slow in materialised
    assert quick not in materialised
    assert apart not in materialised, "two loops that do not depend on each other are one kernel"


def softmax(shape):
    """Scores through a softmax into a product; its backward reads the exponentials. Returns these, the sum, a graph."""
    build = Builder()
    scores = build.shaped("dot_general", build.input(4000), shape=shape)
    top = build.shaped("broadcast_in_dim", build.shaped("reduce_max", scores, shape=shape[:-1]), shape=shape)
    powers = build.shaped("exp", build.shaped("sub", scores, top, shape=shape), shape=shape)
    total = build.shaped("reduce_sum", powers, shape=shape[:-1])
    wide = build.shaped("broadcast_in_dim", total, shape=shape)
    out = build.shaped("dot_general", build.shaped("div", powers, wide, shape=shape), shape=(4,))
    late = build.shaped("mul", powers, out, shape=shape, phase=Phase.BACKWARD)
    gradient = build.shaped("reduce_sum", late, shape=shape[:-1], phase=Phase.BACKWARD)
    return powers, total, build.graph(build.shaped("dot_general", gradient, shape=(4,), phase=Phase.BACKWARD), out)


@pytest.mark.parametrize("shape", [(64, 197), (64, 512), (2**16, 1024)])
def test_a_softmax_over_long_or_odd_rows_writes_its_exponentials(shape):
    powers, total, graph = softmax(shape)
    assert {powers, total} <= fuse(graph).materialised


@pytest.mark.parametrize("shape", [(64, 64), (2**16 + 1, 512)])
def test_a_softmax_over_rows_that_a_kernel_holds_does_not(shape):
    powers, _, graph = softmax(shape)
    assert powers not in fuse(graph).materialised


@pytest.mark.parametrize(("devices", "is_held"), [(1, True), (2, False)])
def test_rows_on_one_device_decide_if_a_kernel_can_hold_them(devices, is_held):
    powers, _, graph = softmax((2**16 + 2, 512))
    over = (("data",), ())
    values = tuple(replace(v, split=over[: len(v.shape)], size_bytes=v.size_bytes // devices) for v in graph.values)
    graph = replace(graph, values=values, mesh=(("data", devices),))
    assert (powers not in fuse(graph).materialised) is is_held


def test_a_recomputed_softmax_is_one_kernel_in_the_forward_pass():
    powers, total, graph = softmax((64, 197))
    drop = {value: Recompute() for value in (powers, total)}
    laid_out = schedule(graph, GraphPlan(fingerprint=graph.fingerprint, decisions=drop))
    analysis = FusionAnalysis(fuse(graph).rules, laid_out.steps, laid_out.origin, laid_out.outputs)
    for step in laid_out.steps:
        if isinstance(step, Run):
            analysis.run(step)
    written = [instance for instance in analysis.materialised if laid_out.origin[instance] == powers]
    assert powers not in written and len(written) == 1
    assert total not in analysis.materialised


def test_a_mean_of_a_row_is_not_held_with_the_rows():
    build = Builder()
    product = build.shaped("dot_general", build.input(4000), shape=(10, 100))
    scores = build.shaped("neg", product, shape=(10, 100))
    mean = build.shaped("div", build.shaped("reduce_sum", scores, shape=(10,)), shape=(10,))
    wide = build.shaped("broadcast_in_dim", mean, shape=(10, 100))
    out = build.shaped("dot_general", build.shaped("sub", scores, wide, shape=(10, 100)), shape=(10, 10))
    graph = build.graph(out)
    assert graph.ops[graph.producer[mean]].reads[0] in fuse(graph).materialised


def test_a_scatter_is_no_scatter_into_a_bias_that_is_added_to_it():
    build = Builder()
    messages = build.op("dot_general", build.input(4000), size_bytes=4000)
    index = build.op("reduce_max", messages, size_bytes=4)
    zeros = build.op("broadcast_in_dim", size_bytes=8000)
    scattered = build.op("scatter-add", zeros, index, messages, size_bytes=8000)
    bias = build.op("broadcast_in_dim", build.input(8), size_bytes=8000)
    total = build.op("add", scattered, bias, size_bytes=8000)
    assert scattered in fuse(build.graph(build.op("dot_general", total, size_bytes=4))).materialised


def test_a_table_of_several_sources_that_is_picked_many_times_is_in_memory():
    """Messages of a graph's edges: a node is picked for each of its edges, and would be computed as often."""
    build = Builder()
    left, right, index = build.input(4000), build.input(4000), build.input(400)
    table = build.op("add", left, right, size_bytes=4000)
    picked = build.op("gather", table, index, size_bytes=80_000)
    outs = [build.op("reduce_sum", build.op("mul", picked, index, size_bytes=80_000), size_bytes=4) for _ in range(2)]
    fusion = fuse(build.graph(*outs))
    assert table in fusion.materialised
    assert picked not in fusion.materialised


def test_a_table_that_is_picked_many_times_is_a_reader_of_its_own():
    """A cotangent that a layer's table is computed of, and the next layer's cotangent."""
    build = Builder()
    one, two, three, index = (build.input(size) for size in (4000, 4000, 4000, 400))
    total = build.op("add", build.op("add", one, two, size_bytes=4000), three, size_bytes=4000)
    table = build.op("mul", total, one, size_bytes=4000)
    picked = build.op("gather", table, index, size_bytes=80_000)
    outs = [build.op("reduce_sum", value, size_bytes=4) for value in (picked, total)]
    assert {total, table} <= fuse(build.graph(*outs)).materialised


def test_a_cast_of_a_table_is_computed_for_gathered_elements():
    build = Builder()
    index = build.input(40)
    cast = build.op("convert_element_type", build.input(8000), size_bytes=4000)
    picked = build.op("gather", cast, index, size_bytes=400)
    readers = [build.op("reduce_sum", picked, size_bytes=4) for _ in range(3)]
    assert cast not in fuse(build.graph(*readers)).materialised


@pytest.mark.parametrize(("views", "is_written_as"), [(("transpose", "reshape"), 2), (("reshape", "squeeze"), 0)])
def test_a_gather_writes_its_elements_as_a_transposition_shows_them(views, is_written_as):
    """A saved value is pinned in that order; else XLA picks the elements again in each kernel that reads them."""
    build = Builder()
    shown = [build.op("gather", build.input(8000), build.input(40), size_bytes=4000)]
    for view in views:
        shown.append(build.op(view, shown[-1], size_bytes=4000))
    readers = [build.op("dot_general", shown[-1], size_bytes=4) for _ in range(2)]
    materialised = fuse(build.graph(*readers)).materialised
    assert [value in materialised for value in shown] == [at == is_written_as for at in range(len(shown))]


def test_a_slice_reads_only_what_it_shows():
    build = Builder()
    product = build.op("dot_general", build.input(4000), size_bytes=4000)
    part = build.op("slice", product, size_bytes=400)
    assert fuse(build.graph(build.op("reduce_sum", part, size_bytes=4))).sources[part] == {product: 400}


def test_a_mask_beside_its_random_bits_is_optional():
    build = Builder()
    bits = build.op("random_bits", build.input(4), size_bytes=4000)
    mask = build.op("lt", bits, size_bytes=1000)
    late = build.op("reduce_sum", mask, size_bytes=4, phase=Phase.BACKWARD)
    fusion = fuse(build.graph(late))
    assert bits in fusion.materialised
    assert fusion.optional == {mask}


def test_casts_of_arguments_are_argument_derived():
    build = Builder()
    cast = build.op("convert_element_type", build.input(4000), size_bytes=2000)
    product = build.op("dot_general", cast, size_bytes=4000)
    fusion = fuse(build.graph(product))
    assert cast in fusion.argument_derived and cast in fusion.materialised
    assert product not in fusion.argument_derived


@given(graphs())
def test_every_value_is_read_from_memory(graph):
    fusion = fuse(graph)
    for value, sources in enumerate(fusion.sources):
        assert set(sources) <= fusion.materialised
        if value in fusion.materialised:
            assert set(sources) == {value}


@given(graphs())
def test_results_and_arguments_are_in_memory(graph):
    assert {*graph.inputs, *graph.outputs} <= fuse(graph).materialised


def dropping(*, dtype="key<fry>", is_read_twice=False):
    """A mask, a quarter of its random bits, which the forward and the backward read."""
    build = Builder()
    key, x = build.input(8), build.input(16000)
    build.values[key] = replace(build.values[key], dtype=dtype)
    bits = build.op("random_bits", key, size_bytes=16000)
    mask = build.op("lt", bits, size_bytes=4000)
    dropped = build.op("select_n", mask, x, size_bytes=16000)
    outputs = [build.op("dot_general", dropped, size_bytes=4)]
    if is_read_twice:
        outputs.append(build.op("neg", bits, size_bytes=4))
    outputs.append(build.op("select_n", mask, x, size_bytes=16000, phase=Phase.BACKWARD))
    return build.graph(*outputs), bits, mask


def test_random_bits_are_in_no_memory_and_their_mask_is():
    graph, bits, mask = dropping()
    fusion = fuse(graph)
    assert (bits in fusion.materialised, mask in fusion.materialised) == (False, True)


def test_random_bits_that_their_reader_cannot_draw_are_in_memory():
    for other in ({"dtype": "key<rbg>"}, {"is_read_twice": True}):
        graph, bits, _ = dropping(**other)
        assert bits in fuse(graph).materialised, other


def test_kernels_read_no_random_bits():
    graph, bits, mask = dropping()
    replayed = replay(
        graph, schedule(graph, GraphPlan(fingerprint=graph.fingerprint)), fusion=fuse(graph),
        arithmetic=arithmetic_costs(graph, RATES), rates=RATES,
    )  # fmt: skip
    assert mask in replayed.births
    assert bits not in replayed.births
