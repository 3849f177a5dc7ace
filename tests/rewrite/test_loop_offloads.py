"""Values of a loop offloaded in one stack on the host: the same bits, and refused where XLA fails."""

import functools
import re
import sys
from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AxisType, NamedSharding, PartitionSpec, SingleDeviceSharding

import jaxckpt
from jaxckpt import Planner, Policy, UnsupportedDecisionError
from jaxckpt.ir import Offload, Save
from jaxckpt.machine import Target, targets
from jaxckpt.policy import Match, Rule
from jaxckpt.rewrite import rewrite
from jaxckpt.rewrite.known_bad import misreads_offloaded_stacks
from jaxckpt.schedule import Move, schedule
from jaxckpt.solve import Problem, plan_from_policy
from jaxckpt.trace import trace_step
from jaxckpt.verifier.interpret import run_one_by_one

GPU = any(status.name == "h200" and status.usable for status in targets())
BAD = GPU and misreads_offloaded_stacks("cuda", Target("h200").compiler_version)
needs_gpu = pytest.mark.skipif(not GPU, reason="no compile-only GPU")
needs_good_gpu = pytest.mark.skipif(not GPU or BAD, reason="no compile-only GPU, or one that gets it wrong")
LAYERS = 4


def block(y, weights):
    wide = checkpoint_name(jnp.sin(y @ weights[0]), "wide")
    return y + (wide * jnp.tanh(wide)) @ weights[1]


OWN = jax.checkpoint_policies.save_and_offload_only_these_names(
    names_which_can_be_saved=[],
    names_which_can_be_offloaded=["wide"],
    offload_src="device",
    offload_dst="pinned_host",
)


def layers(weights, y, *, body=block, unroll=1, reverse=False):
    return jax.lax.scan(lambda y, each: (body(y, each), None), y, weights, unroll=unroll, reverse=reverse)[0]


def scanned(weights, x, **options):
    return jax.value_and_grad(lambda weights: (layers(weights, x, **options) ** 2).mean())(weights)


def by_jax(weights, x, step=scanned):
    body = jax.checkpoint(block, policy=OWN, prevent_cse=False)
    if step is accumulated:
        return accumulated(weights, x, inner=functools.partial(scanned, body=body))
    return step(weights, x, body=body)


def with_tiled_loops(weights, x, body=block):
    def loss(weights):
        y, _ = jax.lax.scan(lambda y, each: (layers(each, y, body=body), None), x, weights)
        return (y**2).mean()

    pairs = jax.tree.map(lambda a: a.reshape(2, -1, *a.shape[1:]), weights)
    return jax.value_and_grad(loss)(pairs)


def accumulated(weights, x, inner=scanned):
    def turn(sums, part):
        return jax.tree.map(jnp.add, sums, inner(weights, part)), None

    zeros = jax.tree.map(jnp.zeros_like, inner(weights, x[:2]))
    return jax.lax.scan(turn, zeros, x.reshape(2, -1, x.shape[-1]))[0]


def one_after_the_other(weights, x):
    def loss(weights):
        y = x
        for layer in range(LAYERS):
            y = block(y, jax.tree.map(lambda a, layer=layer: a[layer], weights))
        return (y**2).mean()

    return jax.value_and_grad(loss)(weights)


def arguments(width=8, tokens=4, dtype=jnp.float32):
    one, other, last = jax.random.split(jax.random.key(0), 3)
    weights = (
        jax.random.normal(one, (LAYERS, width, 4 * width), dtype) / 8,
        jax.random.normal(other, (LAYERS, 4 * width, width), dtype) / 8,
    )
    return weights, jax.random.normal(last, (tokens, width), dtype)


def shapes(width=1024, tokens=8192):
    return jax.eval_shape(functools.partial(arguments, width, tokens, jnp.bfloat16))


VALUE_BYTES = 8192 * 4096 * 2


def keeping(decision, default="recompute"):
    return Policy(default=default, rules=(Rule(match=Match(name="wide"), decision=decision),))


def planned(step, decision, *args):
    traced = trace_step(step, *args)
    return traced, plan_from_policy(Problem(graph=traced.graph, rates=Target("h200").rates), keeping(decision)).plan


def walk(jaxpr):
    for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        yield eqn
        for inner in jex.jaxprs_in_params(eqn.params):
            yield from walk(inner)


### What is computed


@pytest.mark.parametrize(
    ("step", "default", "prefetch"),
    [
        (scanned, "save", 1),
        (scanned, "recompute", 0),
        (functools.partial(scanned, reverse=True), "recompute", 1),
        (accumulated, "recompute", 1),
        (accumulated, "save", 0),
    ],
)
def test_bits_are_equal_op_by_op_and_numbers_are_close_compiled(step, default, prefetch):
    args = arguments()
    traced = trace_step(step, *args)
    problem = Problem(graph=traced.graph, rates=Target("h200").rates)
    plan = plan_from_policy(problem, keeping(Offload(prefetch=prefetch), default)).plan
    assert any(isinstance(decision, Offload) for decision in plan.decisions.values())
    flat = jax.tree.leaves(args)
    expected = run_one_by_one(jax.make_jaxpr(step)(*args), *flat)
    for one, other in zip(expected, run_one_by_one(rewrite(traced, plan).jaxpr, *flat), strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
    applied = jax.jit(jaxckpt.apply(step, keeping(Offload(prefetch=prefetch), default)))(*args)
    for one, other in zip(expected, jax.tree.leaves(applied), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("prefetch", "more"), [(0, 0), (1, 1)])
def test_each_iteration_stores_and_loads_once(prefetch, more):
    args = arguments()
    traced, plan = planned(scanned, Offload(prefetch=prefetch), *args)
    _, kept = planned(scanned, Save(), *args)
    rewritten, other = rewrite(traced, plan), rewrite(traced, kept)
    moves = [step for step in rewritten.schedule.steps if isinstance(step, Move)]
    assert [(move.restores, move.is_pipelined) for move in moves] == [(False, bool(prefetch)), (True, bool(prefetch))]
    assert moves[0].loop != moves[1].loop
    scans, without = ([e for e in walk(r.jaxpr) if e.primitive.name == "scan"] for r in (rewritten, other))
    for scan, plain in zip(scans, without, strict=True):
        assert sum(eqn.primitive.name == "device_put" for eqn in walk(scan.params["jaxpr"])) == 1
        assert len(scan.outvars) == len(plain.outvars) + more
    stacks = [v.aval for v in scans[0].outvars if "host" in str(v.aval)]
    assert [stack.shape for stack in stacks] == [(LAYERS, 4, 32)]


def test_by_default_copies_are_within_the_iteration():
    traced, plan = planned(scanned, Offload(prefetch=1), *arguments())
    open_ = {v: Offload() if isinstance(d, Offload) else d for v, d in plan.decisions.items()}
    moves = [m for m in schedule(traced.graph, replace(plan, decisions=open_)).steps if isinstance(m, Move)]
    assert [move.is_pipelined for move in moves] == [False, False]


### What is refused


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (with_tiled_loops, r"nested loops \(2 x 2 iterations\) would need a stack of stacks"),
        (functools.partial(scanned, unroll=2), r"unrolled \(unroll=2\)"),
        (functools.partial(scanned, unroll=LAYERS), r"unrolled \(unroll=4\)"),
        (
            functools.partial(accumulated, inner=one_after_the_other),
            "forward and backward stand in the body of one loop",
        ),
    ],
)
def test_offloads_that_xla_cannot_place_are_refused_with_advice(step, reason):
    with pytest.raises(UnsupportedDecisionError, match=reason) as refused:
        jaxckpt.apply(step, keeping(Offload()))(*arguments())
    assert "Offload of value" in refused.value.got
    assert "'wide'" in refused.value.got
    assert "save or recompute" in refused.value.advice


@needs_gpu
@pytest.mark.parametrize("step", [with_tiled_loops, functools.partial(scanned, unroll=2)])
def test_it_is_refused_because_the_compiler_fails_on_it(step):
    """Of JAX's own policy too. Where this passes one day, `jaxckpt.schedule.validate` may let it through."""
    with pytest.raises(jaxckpt.CompileError, match="INTERNAL"):
        jaxckpt.footprint(functools.partial(by_jax, step=step), *shapes(), target="h200")


### What the compiler makes of it


@needs_good_gpu
@pytest.mark.parametrize("step", [scanned, accumulated])
def test_the_stack_is_on_the_host_as_with_jaxs_own_policy(step):
    args = shapes()
    plans = {d: Planner(step, *args, target="h200").follow(keeping(d)) for d in (Save(), Offload())}
    saved, sent = (plan.footprint for plan in plans.values())
    own = jaxckpt.footprint(functools.partial(by_jax, step=step), *args, target="h200")
    stack_bytes = LAYERS * VALUE_BYTES // (2 if step is accumulated else 1)
    assert saved.host_temp_bytes == 0
    assert sent.host_temp_bytes == sent.memory.most_host_bytes == own.host_temp_bytes == stack_bytes
    assert sent.temp_bytes <= own.temp_bytes
    slice_bytes = stack_bytes // LAYERS
    assert saved.temp_bytes - sent.temp_bytes >= stack_bytes - slice_bytes - 2**16  # all but the slice at hand
    assert plans[Offload()].predicted.host_bytes == stack_bytes
    assert {transfer.to_host for transfer in sent.memory.transfers} == {True, False}
    turns = LAYERS * (2 if step is accumulated else 1)
    assert all(t.count == turns and t.count * t.size_bytes % stack_bytes == 0 for t in sent.memory.transfers)


@needs_good_gpu
def test_an_iteration_ahead_takes_two_slices_more_at_most():
    planner = Planner(scanned, *shapes(), target="h200")
    within, ahead = (planner.follow(keeping(Offload(prefetch=prefetch))) for prefetch in (0, 1))
    more_bytes = ahead.footprint.temp_bytes - within.footprint.temp_bytes
    assert more_bytes <= 2 * VALUE_BYTES
    assert ahead.footprint.host_temp_bytes == within.footprint.host_temp_bytes


### Compilers that read another turn's values


@needs_gpu
def test_refused_versions_slice_the_host_stack_in_wrong_order():
    """The backward goes through the stack from its end: the slices' stride in bytes must be negative."""
    device = SingleDeviceSharding(Target("h200").devices[0])
    args = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=device), shapes())
    text = jax.jit(by_jax).lower(*args).compile().as_text()
    (line,) = re.findall(rf"= bf16\[1,8192,4096\]\S* dynamic-slice\(.*\"byte_stride\":\"-?{VALUE_BYTES}\".*", text)
    goes_forward = f'"byte_stride":"{VALUE_BYTES}"' in line
    assert goes_forward == misreads_offloaded_stacks("cuda", Target("h200").compiler_version)


@needs_gpu
@pytest.mark.skipif(not BAD, reason="this compiler gets it right")
def test_such_a_compiler_is_refused_by_planners():
    with pytest.raises(UnsupportedDecisionError, match="silently compute wrong gradients") as refused:
        Planner(scanned, *shapes(), target="h200").follow(keeping(Offload()))
    assert "openxla/xla#46308" in refused.value.got
    assert "wide" in refused.value.got


def test_steps_on_such_a_compiler_are_refused_when_called(monkeypatch):
    module = sys.modules[jaxckpt.rewrite.apply.__module__]
    monkeypatch.setattr(module, "platforms", lambda _: ("cuda",))
    monkeypatch.setattr(module, "compiler_for", lambda _: SimpleNamespace(version="0.11.0"))
    with pytest.raises(UnsupportedDecisionError, match=r"apply\(scanned\).*silently compute wrong gradients"):
        jaxckpt.apply(scanned, keeping(Offload()))(*arguments())
    jaxckpt.apply(scanned, keeping(Save()))(*arguments())
    jaxckpt.apply(one_after_the_other, keeping(Offload()))(*arguments())


### On meshes


@pytest.mark.parametrize("prefetch", [0, 1])
@pytest.mark.parametrize("kinds", [("Auto", "Auto"), ("Explicit", "Explicit"), ("Auto", "Explicit")])
def test_stacks_of_shards_go_to_the_host_too(kinds, prefetch):
    if jax.device_count() < 8:
        pytest.skip("fewer than eight devices")
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=tuple(getattr(AxisType, kind) for kind in kinds))
    with jax.set_mesh(mesh):
        weights, x = arguments()
        args = (
            jax.device_put(weights, NamedSharding(mesh, PartitionSpec())),
            jax.device_put(x, NamedSharding(mesh, PartitionSpec("data"))),
        )
        planned = jax.jit(jaxckpt.apply(scanned, keeping(Offload(prefetch=prefetch))))
        for one, other in zip(jax.tree.leaves(jax.jit(scanned)(*args)), jax.tree.leaves(planned(*args)), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
        assert any("host" in str(e.outvars[0].aval) for e in walk(jax.make_jaxpr(planned)(*args)))
