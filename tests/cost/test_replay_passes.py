"""Golden results of each pass of a replay, on one small step: kernels, live ranges, times, bytes alive."""

from types import SimpleNamespace

import pytest

from jaxckpt.cost import arithmetic_costs, fuse
from jaxckpt.cost.buffer_liveness import BufferLiveness
from jaxckpt.cost.clock import StepClock
from jaxckpt.cost.fusion_analysis import FusionAnalysis
from jaxckpt.cost.kernels import ScheduleKernels
from jaxckpt.cost.loop_liveness import Span
from jaxckpt.cost.peak import heap_ranges, live_bytes
from jaxckpt.cost.shared_passes import SharedPasses
from jaxckpt.ir import Graph, GraphPlan, Offload, Phase, Recompute, Save
from jaxckpt.schedule import Barrier, Move, Run, Schedule, schedule
from tests.graphs import RATES, Builder

MB = 10**6
LAUNCH_S, MB_S = RATES.launch_s, MB / RATES.memory_bandwidth_bytes_per_s


def step() -> Graph:
    """A product, elementwise work that is fused into its reduction, and a gradient that reads the product."""
    build = Builder()
    x = build.input(MB)
    product = build.op("dot_general", x, size_bytes=MB)
    negated = build.op("neg", product, size_bytes=MB)
    total = build.op("reduce_sum", negated, size_bytes=4)
    gradient = build.op("dot_general", product, total, size_bytes=MB, phase=Phase.BACKWARD)
    return build.graph(gradient)


X, PRODUCT, NEGATED, TOTAL, GRADIENT = range(5)


def passes(graph: Graph, decisions=()):
    """The schedule of a plan, its kernels and its buffers."""
    laid_out = schedule(graph, GraphPlan(fingerprint="", decisions=dict(decisions)))
    return laid_out, *kernels_and_buffers(graph, laid_out)


def kernels_and_buffers(graph: Graph, laid_out: Schedule):
    kernels = ScheduleKernels(graph, laid_out, fuse(graph).rules, arithmetic_costs(graph, RATES), RATES)
    return kernels, BufferLiveness(graph, kernels)


def test_a_kernel_runs_where_memory_is_written():
    _, kernels, _ = passes(step())
    found = [kernel and (dict(kernel.reads), list(kernel.writes)) for kernel in kernels.by_step]
    assert found == [
        ({X: MB}, [PRODUCT]),
        None,  # fused into the reduction
        ({PRODUCT: MB}, [TOTAL]),
        ({PRODUCT: MB, TOTAL: 4}, [GRADIENT]),
    ]
    assert next(kernel.seconds for kernel in kernels.by_step if kernel) == LAUNCH_S + 2 * MB_S


def test_a_buffer_lives_to_the_last_kernel_that_reads_it():
    _, _, buffers = passes(step())
    assert (buffers.births, buffers.deaths) == (
        {PRODUCT: 0, TOTAL: 2, GRADIENT: 3},
        {PRODUCT: 3, TOTAL: 3, GRADIENT: 3},
    )


def test_an_offloaded_buffer_lives_until_its_copy_is_done(monkeypatch):
    calls = []
    for name in ("store", "load", "wait"):
        plain = getattr(StepClock, name)
        monkeypatch.setattr(
            StepClock, name, lambda *args, name=name, plain=plain: calls.append((name, *args[1:])) or plain(*args)
        )
    laid_out, _, buffers = passes(step(), {PRODUCT: Offload()})
    (store,) = (call for call in calls if call[0] == "store")
    (load,) = (call for call in calls if call[0] == "load")
    loaded = load[2]
    assert [laid_out.origin[i] for i in (store[1], load[1], loaded)] == [PRODUCT] * 3
    assert calls.index(store) < calls.index(load) < calls.index(("wait", loaded))
    assert buffers.deaths[PRODUCT] == buffers.births[loaded] < buffers.deaths[loaded]


def test_a_loaded_buffer_lives_behind_a_barrier_that_it_passes():
    stored, held, loaded, passed = range(5, 9)
    steps = (
        Run(op=0, reads=(X,), writes=(PRODUCT,)),
        Move(reads=(PRODUCT,), writes=(stored,), decision=Offload()),
        Run(op=1, reads=(PRODUCT,), writes=(NEGATED,)),
        Run(op=2, reads=(NEGATED,), writes=(TOTAL,)),
        Barrier(reads=(stored,), writes=(held,), trigger=TOTAL, why="load"),
        Move(reads=(held,), writes=(loaded,), decision=Offload(), restores=True),
        Barrier(reads=(loaded,), writes=(passed,), trigger=TOTAL, why="recompute"),
        Run(op=3, reads=(passed, TOTAL), writes=(GRADIENT,)),
    )
    laid_out = Schedule(steps=steps, origin=(*range(5), *[PRODUCT] * 4), outputs=(GRADIENT,))
    _, buffers = kernels_and_buffers(step(), laid_out)
    assert buffers.deaths[loaded] == len(steps) - 1


def test_kernels_run_beside_copies_and_wait_for_those_they_need():
    clock = StepClock(step(), RATES.host_bandwidth_bytes_per_s)
    copied_s = MB / RATES.host_bandwidth_bytes_per_s
    clock.begin(None)
    clock.work(1e-6)
    clock.store(8, MB)
    clock.end()
    clock.pass_on(8, 9)
    clock.end()
    for work_s, awaited in ((2e-6, 9), (3e-6, 7)):
        clock.begin(None)
        clock.work(work_s)
        clock.wait(awaited)
        clock.end()
    assert clock.seconds == [1e-6, 0.0, 2e-6 + (copied_s - (1e-6 + 2e-6)), 3e-6]
    assert (clock.stall_s, clock.host_bytes) == (copied_s - 3e-6, MB)


LENGTH = 3


def buffers_of(*ranges: tuple[int, int], **facts) -> SimpleNamespace:
    """Buffers of a schedule of three steps, in a step without loops."""
    births, deaths = ({i: each[k] for i, each in enumerate(ranges)} for k in (0, 1))
    nothing = {"in_place": {}, "indirect": set(), "workspace_bytes": {}, "loops": passes(step())[2].loops}
    return SimpleNamespace(births=births, deaths=deaths, size_bytes=[MB] * len(ranges), **(nothing | facts))


def alive(buffers, length=LENGTH, *, external=(), results=frozenset()) -> tuple[int, ...]:
    return live_bytes(heap_ranges(buffers, external=external, results=results), length)


def test_bytes_alive_are_those_of_live_ranges_and_workspaces():
    buffers = buffers_of((0, 1), (1, 2), workspace_bytes={2: 5})
    assert alive(buffers) == (MB, 2 * MB, MB + 5)
    assert alive(buffers, external={0}) == (0, MB, MB + 5)


def test_a_kernel_writes_over_a_buffer_of_its_shape_that_dies():
    assert alive(buffers_of((0, 1), (1, 2), in_place={1: False})) == (MB, MB, MB)
    assert alive(buffers_of((0, 1), (1, 2), in_place={1: False}, indirect={0})) == (MB, 2 * MB, MB)
    assert alive(buffers_of((0, 1), (1, 2), in_place={1: True}, indirect={0})) == (MB, MB, MB)


def test_what_is_written_over_has_one_live_range():
    buffers = buffers_of((0, 1), (1, 2), (2, 2), in_place={2: False, 1: False})
    assert heap_ranges(buffers, external=(), results=set()) == (Span(birth=0, death=2, size_bytes=MB),)


@pytest.mark.parametrize(("primitive", "is_tuple"), [("dot_general", False), ("conv_general_dilated", True)])
def test_no_kernel_writes_over_what_a_convolution_returns(primitive, is_tuple):
    """A call of cuDNN returns a tuple of the result and its scratch: no reader has the result itself as an operand."""
    build = Builder()
    x, w = build.input(MB), build.input(MB)
    made = build.op(primitive, x, w, size_bytes=MB)
    changed = build.op("sin", made, size_bytes=MB)
    graph = build.graph(
        build.op("reduce_sum", changed, build.op("dot_general", changed, w, size_bytes=MB), size_bytes=4)
    )
    buffers = passes(graph)[2]
    assert (made in buffers.indirect) is is_tuple


def test_a_loop_takes_over_what_a_convolution_returns():
    """Its carry is one buffer from the initial value to the result, whatever defines the initial value."""
    build = Builder()
    x, w = build.input(MB), build.input(MB)
    made = build.op("conv_general_dilated", x, w, size_bytes=MB)
    repeated = build.op("while", made, size_bytes=MB, carries=1)
    graph = build.graph(build.op("reduce_sum", repeated, size_bytes=4))
    buffers = passes(graph)[2]
    assert made in buffers.indirect
    assert max(alive(buffers, len(graph.ops))) == MB + 4


def test_a_temporary_fits_in_a_result_that_is_not_written_yet():
    assert alive(buffers_of((0, 1), (2, 2)), external={1}, results={1}) == (0, 0, 0)


### Shared passes


def shared_passes(graph: Graph) -> SharedPasses:
    """Those of a step without a plan."""
    laid_out = schedule(graph, GraphPlan(fingerprint=""))
    return SharedPasses(laid_out.steps, FusionAnalysis(fuse(graph).rules, laid_out.steps, laid_out.origin, ()), RATES)


def joined(*primitives, between=None):
    """The kernels of loops over one array, as the steps that start them, each after `between`."""
    build = Builder()
    x = build.input(MB)
    for primitive in primitives:
        build.op(primitive, x, size_bytes=4)
    graph = build.graph(len(primitives))
    shared, found = shared_passes(graph), []
    for at, op in enumerate(graph.ops):
        if between is not None and at:
            between(shared, at)
        kernel, _ = shared.join(at, op, {x: MB}, op.writes, MB, 0.0)
        shared.write(at, kernel, op, op.writes)
        found.append(kernel)
    return found


def test_loops_over_one_array_share_a_kernel():
    assert joined("reduce_max", "reduce_sum") == [0, 0]
    assert joined("reduce_max", "reduce_sum", between=lambda shared, at: shared.pass_barrier(at, {0: MB})) == [0, 1]
    assert joined("reduce_max", "reduce_sum", between=lambda shared, at: shared.enter_loop()) == [0, 1]


def test_a_loop_joining_a_kernel_reads_the_shared_array_for_free():
    shared, op = shared_passes(step()), step().ops[1]
    _, first_s = shared.join(0, op, {0: MB}, op.writes, MB, 0.0)
    _, second_s = shared.join(1, op, {0: MB}, op.writes, MB, 0.0)
    assert (first_s, second_s) == (LAUNCH_S + MB_S, 0.0)


def test_no_loop_joins_the_reduction_whose_result_it_reads():
    shared, (_, negate, reduce, _) = shared_passes(step()), step().ops
    shared.join(0, reduce, {PRODUCT: MB}, reduce.writes, MB, 0.0)
    shared.write(0, 0, reduce, reduce.writes)
    assert shared.join(1, negate, {PRODUCT: MB, TOTAL: 4}, negate.writes, MB, 0.0)[0] == 1


def test_the_first_reader_of_a_mask_that_reads_nothing_draws_it():
    """Its other readers, and those behind a barrier, read the mask."""

    def kernels(barrier):
        shared, op = shared_passes(step()), step().ops[1]
        assert shared.join(0, op, {}, (7,), MB, 0.0) == (0, LAUNCH_S + MB_S)
        if barrier:
            shared.pass_barrier(1, {7: MB})
        return [shared.join(at, op, {7: MB, at: 2 * MB}, (), 3 * MB, 0.0)[0] for at in (2, 3)]

    assert kernels(barrier=False) == [0, 3]
    assert kernels(barrier=True) == [2, 3]


### Clones that run with later loops


def layer_backward() -> Graph:
    """An activation of a product, and the backward of the layer behind it: both products, then the derivative."""
    build = Builder()
    x, weight = build.input(MB), build.input(MB)
    product = build.op("dot_general", x, weight, size_bytes=MB)
    activated = build.op("erfc", product, size_bytes=MB)
    slope = build.op("exp", product, size_bytes=MB)
    cotangent = build.op("dot_general", x, weight, size_bytes=MB, phase=Phase.BACKWARD)
    gradient = build.op("dot_general", cotangent, activated, size_bytes=MB, phase=Phase.BACKWARD)
    before = build.op("dot_general", cotangent, weight, size_bytes=MB, phase=Phase.BACKWARD)
    derivative = build.op("mul", before, slope, size_bytes=MB, phase=Phase.BACKWARD)
    return build.graph(gradient, build.op("dot_general", derivative, weight, size_bytes=MB, phase=Phase.BACKWARD))


SAVED, ACTIVATED, SLOPE, COTANGENT, WEIGHT_GRADIENT, BEFORE, DERIVATIVE = range(2, 9)


def test_a_clone_runs_with_a_later_loop_over_its_operand():
    """And behind both what reads the clone's result: the product of the weight's gradient."""
    laid_out, kernels, _ = passes(layer_backward(), {SAVED: Save(), ACTIVATED: Recompute(), SLOPE: Recompute()})
    runs = [(at, step) for at, step in enumerate(laid_out.steps) if isinstance(step, Run)]
    runs_at = {step.writes[0]: kernels.passes.runs_at.get(at, at) for at, step in runs}
    clone = next(step.writes[0] for _, step in runs if step.is_clone and laid_out.origin[step.writes[0]] == ACTIVATED)
    assert runs_at[clone] == runs_at[DERIVATIVE]
    assert runs_at[WEIGHT_GRADIENT] > runs_at[DERIVATIVE]
