"""Values that the optimum sends to the host: never slower for it, within the host's bytes, and a link that queues."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, strategies as st

from jaxckpt.cost import HostLinkQueue
from jaxckpt.ir import Offload
from jaxckpt.machine import Target
from jaxckpt.solve import Offloading, OptimalSolver, Problem
from jaxckpt.solve.optimal.moved_options import HostLink, offload_variants
from jaxckpt.solve.optimal.options import Option
from jaxckpt.trace import trace_step
from tests.graphs import RATES, chain

BYTES = 2**22
LAYERS = 12
WORK_S = 1e-3
"""Of each product of the chain: far more than it takes to write its result."""


def problem(*, copy_s=0.5 * WORK_S, layers=LAYERS, may_offload=True, **offloading):
    """A chain of layers, each result of which can be copied in so many seconds."""
    rates = replace(RATES, host_bandwidth_bytes_per_s=BYTES / copy_s)
    return Problem(
        graph=chain(layers, size_bytes=BYTES, flops=WORK_S * 1e12),
        rates=rates,
        offloading=Offloading(**offloading),
        may_offload=may_offload,
    )


def solved(asked, kept=5):
    return OptimalSolver(asked).solve(kept * BYTES)


def offloaded(plan):
    return [v for v, decision in plan.decisions.items() if isinstance(decision, Offload)]


### The link


def simulated_s(link, chosen):
    """Two streams: kernels stage by stage, and a queue of copies each way."""
    copies_s = [own[k] for own, k in zip(link.copy_s, chosen, strict=True)]
    out, now_s = HostLinkQueue(1e9), 0.0
    for stage, copy_s in enumerate(copies_s):
        now_s += link.forward_s[stage]
        out.store(stage, copy_s * 1e9, now_s=now_s)
    waited_s = max(out.wait(stage, now_s=now_s) for stage in range(len(copies_s)))
    back, now_s = HostLinkQueue(1e9), 0.0
    for stage in reversed(range(len(copies_s))):
        back.load(stage, copies_s[stage] * 1e9, now_s=0.0)
    for stage in reversed(range(len(copies_s))):
        now_s += back.wait(stage, now_s=now_s) + link.backward_s[stage]
    return waited_s + back.stall_s


seconds = st.floats(0, 2)


@st.composite
def links(draw):
    stages = draw(st.integers(1, 6))
    copy_s = tuple(tuple(draw(st.lists(seconds, min_size=1, max_size=3))) for _ in range(stages))
    work = [tuple(draw(st.lists(seconds, min_size=stages, max_size=stages))) for _ in range(2)]
    link = HostLink(copy_s=copy_s, host_bytes=(), forward_s=work[0], backward_s=work[1])
    return link, [draw(st.integers(0, len(own) - 1)) for own in copy_s]


@given(links())
def test_what_copies_delay_is_what_two_streams_show(made):
    link, chosen = made
    assert link.stall_s(chosen) == pytest.approx(simulated_s(link, chosen), abs=1e-9)


### The optimum


def test_the_optimum_is_faster_by_offloading_what_a_link_carries():
    on_device, hosted = solved(problem(may_offload=False)), solved(problem())
    assert not offloaded(on_device)
    assert offloaded(hosted)
    assert hosted.predicted.temp_bytes <= 5 * BYTES
    assert hosted.predicted.step_s < on_device.predicted.step_s


def test_nothing_goes_over_a_link_that_is_too_slow():
    assert not offloaded(solved(problem(copy_s=10.0)))


def test_budgets_that_nothing_meets_make_no_further_plans(monkeypatch):
    """The plan of least memory, with its prefetch distances, is that of all of them."""
    solver = OptimalSolver(problem())
    first, replays, replay = solver.solve(1), [], Problem.replay_schedule

    def counted(self, scheduled):
        replays.append(scheduled)
        return replay(self, scheduled)

    monkeypatch.setattr(Problem, "replay_schedule", counted)
    assert first == solver.solve(2) == solver.solve(1000)
    assert not replays


@pytest.mark.parametrize("layers", [0.1, 1.0, 2.0, 10.0])
@pytest.mark.parametrize("kept", [5, 6, 8])
def test_a_plan_that_may_offload_is_never_slower(layers, kept):
    on_device, hosted = (solved(problem(copy_s=layers * WORK_S, may_offload=may), kept) for may in (False, True))
    assert hosted.predicted.step_s <= on_device.predicted.step_s * 1.0001
    assert hosted.predicted.temp_bytes <= max(kept * BYTES, on_device.predicted.temp_bytes)


@pytest.mark.parametrize(("layers", "copy_s"), [(16, 1.9 * WORK_S), (20, 1.6 * WORK_S)])
def test_fewer_values_stay_where_that_lets_loads_start_early(layers, copy_s):
    """With as many values as the budget holds loads would start so late that the step waits for two copies."""
    assert 0 < solved(problem(copy_s=copy_s, layers=layers), 7).predicted.stall_s < copy_s


@pytest.mark.parametrize("copy_s", [WORK_S, 0.1 * WORK_S])
def test_room_is_left_for_values_on_their_way(copy_s):
    """Stores end, and loads begin, while the next stage runs: the budget holds both stages' values then."""
    found = solved(problem(copy_s=copy_s, layers=48), 6)
    assert offloaded(found)
    assert found.predicted.temp_bytes <= 6 * BYTES
    assert found.predicted.stall_s == 0


def test_the_host_is_not_filled_beyond_its_bytes():
    assert solved(problem(copy_s=1e-6)).predicted.host_bytes > 2 * BYTES
    assert solved(problem(copy_s=1e-6, most_host_bytes=2 * BYTES)).predicted.host_bytes <= 2 * BYTES


def test_small_values_and_those_of_the_last_layers_stay():
    assert not offloaded(solved(problem(copy_s=1e-6, min_bytes=BYTES + 1)))
    made = offloaded(solved(problem(copy_s=1e-6, last_layers_kept=6), 8))
    assert made
    assert max(made) <= LAYERS - 6


def test_variants_of_an_option_save_the_same_with_less_on_device():
    asked = problem()
    option = Option(saved=frozenset({1, 2, 3}), saved_bytes=3 * BYTES, recompute_s=1.0)
    found = list(offload_variants(asked, option, frozenset({4})))
    assert [len(each.offloaded) for each in found] == [1, 3, 1, 2, 4]
    assert {each.saved for each in found} == {option.saved}
    assert all(each.saved_bytes + each.offloaded_bytes == option.saved_bytes for each in found)


### Loops


def scanned(weights, x, inner=0):
    def turn(y, each):
        if inner:
            y, _ = jax.lax.scan(lambda y, _: (jnp.sin(y @ each[0]) @ each[1], None), y, None, length=inner)
            return y, None
        wide = jnp.sin(y @ each[0])
        return y + (wide * jnp.tanh(wide)) @ each[1], None

    return jax.value_and_grad(lambda weights: (jax.lax.scan(turn, x, weights)[0] ** 2).mean())(weights)


def looped(*, bandwidth=400e9, may_offload=True, may_offload_loop_values=True, **options):
    described = [(8, 4096, 16384), (8, 16384, 4096), (8192, 4096)]
    up, down, x = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in described)
    asked = Offloading(bandwidth_bytes_per_s=bandwidth)
    return Problem(
        graph=trace_step(functools.partial(scanned, **options), (up, down), x).graph,
        rates=asked.rates(Target("h200").rates),
        offloading=asked,
        may_offload=may_offload,
        may_offload_loop_values=may_offload_loop_values,
    )


def in_loops(asked, plan):
    return [v for v in offloaded(plan) if asked.graph.ops[asked.graph.producer[v]].loop is not None]


BUDGET = 2864 * 2**20
"""For temporaries: too little for a stack of the widest values, enough for two slices of it."""


def test_offloading_residual_stacks_over_fast_links_is_faster():
    asked = looped()
    on_device, hosted = (OptimalSolver(replace(asked, may_offload=may)).solve(BUDGET) for may in (False, True))
    assert not offloaded(on_device)
    assert in_loops(asked, hosted)
    assert hosted.predicted.temp_bytes <= BUDGET
    assert hosted.predicted.step_s < 0.95 * on_device.predicted.step_s
    assert hosted.predicted.host_bytes == len(in_loops(asked, hosted)) * 8 * 8192 * 16384 * 2
    slow = looped(bandwidth=1e9)
    assert not in_loops(slow, OptimalSolver(slow).solve(BUDGET))


@pytest.mark.parametrize("options", [{"may_offload_loop_values": False}, {"inner": 2}])
def test_planners_choose_otherwise_where_the_compiler_would_fail(options):
    asked = looped(**options)
    assert not in_loops(asked, OptimalSolver(asked).solve(BUDGET))
