"""Segments of k layers keep their first input alone, in programs compiled for a GPU, whatever the layers are.

The temporaries are the residuals of one segment, the inputs of all segments, and what the backward of a layer needs at
any interval. DeepSpeed's `activation_checkpoint_interval` and Megatron's `--recompute-num-layers` mean the same.
"""

import jax
import jax.numpy as jnp
import pytest
from flax import linen as nn

import jaxckpt
from jaxckpt.ir import Recompute, Save
from jaxckpt.machine import targets
from jaxckpt.policy import Policy, Regions, layers_of_model
from jaxckpt.trace import trace_step

GPU = any(status.name == "h200" and status.usable for status in targets())
DEPTH = 12
INTERVALS = (1, 2, 3, 4, 6, 12)
MIB = 2**20
WIDTH, TOKENS = 64, 8192


def residual_net(weights, x):
    """The gradient of a net of residual layers without any names: each saves its input and its hidden values."""

    def loss(weights):
        y = x
        for up, down in weights:
            y = y + jnp.tanh(y @ up) @ down
        return (y**2).mean()

    return jax.value_and_grad(loss)(weights)


def shapes(*sizes):
    return tuple(jax.ShapeDtypeStruct(size, jnp.float32) for size in sizes)


RESIDUAL_ARGUMENTS = ([shapes((WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH))] * DEPTH, *shapes((TOKENS, WIDTH)))


class Block(nn.Module):
    """A pre-norm layer: two residual additions, so that stages found by structure are halves of it."""

    @nn.compact
    def __call__(self, x):
        normed = nn.RMSNorm(name="before_attention")(x)
        query, key, value = (nn.Dense(WIDTH, use_bias=False, name=name)(normed) for name in ("query", "key", "value"))
        x = x + jax.nn.softmax(query @ key.swapaxes(-1, -2)) @ value
        hidden = nn.Dense(4 * WIDTH, use_bias=False, name="up")(nn.RMSNorm(name="before_mlp")(x))
        return x + nn.Dense(WIDTH, use_bias=False, name="down")(jnp.tanh(hidden))


class GPT(nn.Module):
    """Twelve layers between an embedding and a head."""

    @nn.compact
    def __call__(self, ids):
        x = nn.Embed(32, WIDTH, name="embed")(ids)
        for number in range(DEPTH):
            x = Block(name=f"layers_{number}")(x)
        return nn.Dense(32, name="head")(x)


def gpt(parameters, ids):
    """The gradient of the GPT."""
    return jax.value_and_grad(lambda p: jax.nn.log_softmax(GPT().apply(p, ids)).mean())(parameters)


IDS = jax.ShapeDtypeStruct((16, 128), jnp.int32)
GPT_ARGUMENTS = (jax.eval_shape(GPT().init, jax.random.key(0), IDS), IDS)


def deepspeed(interval, scope=None):
    return jaxckpt.read_policy({}, "deepspeed", activation_checkpoint_interval=interval, scope=scope).policy


def megatron(interval):
    flags = f"--recompute-granularity full --recompute-method uniform --recompute-num-layers {interval}"
    return jaxckpt.read_policy(flags, "megatron").policy


### What a layer is


def test_layers_are_found_by_name_or_by_structure():
    assert str(layers_of_model(trace_step(gpt, *GPT_ARGUMENTS).graph)) == "12 layers: scopes GPT/layers_[0-9]*"
    assert str(layers_of_model(trace_step(residual_net, *RESIDUAL_ARGUMENTS).graph)) == "12 layers: runs of 5 equal ops"


def test_numbered_parts_of_one_block_are_no_layers():
    """Two norms of the body of a scan differ in a number alone too."""

    def step(weights, x):
        def body(y, weight):
            with jax.named_scope("norm_0"):
                normed = y / jnp.sqrt((y**2).mean(-1, keepdims=True))
            hidden = jnp.sin(jnp.exp(jnp.tanh(jnp.cos(normed @ weight)))) * y
            with jax.named_scope("norm_1"):
                return hidden / jnp.sqrt((hidden**2).mean(-1, keepdims=True)), None

        return jax.grad(lambda weights: jax.lax.scan(body, x, weights)[0].sum())(weights)

    found = layers_of_model(trace_step(step, *shapes((4, 8, 8), (16, 8))).graph)
    assert str(found) == "1 layer: bodies of loops"


def test_a_loop_over_parts_of_a_batch_is_no_layer():
    def loss(weights, x):
        return (jnp.sin(jnp.cos(jnp.tanh(x @ weights) @ weights)) ** 2).sum()

    def step(weights, batches):
        def add(total, x):
            return total + jax.grad(loss)(weights, x), None

        return jax.lax.scan(add, jnp.zeros_like(weights), batches)[0]

    assert layers_of_model(trace_step(step, *shapes((8, 8), (4, 16, 8))).graph) is None


def test_parts_with_the_numbers_of_their_layers_are_layers_together():
    def step(weight, x):
        def loss(weight):
            y = x
            for number in range(3):
                with jax.named_scope(f"attention_{number}"):
                    y = y + jnp.tanh(jnp.sin(y @ weight))
                with jax.named_scope(f"mlp_{number}"):
                    y = y + jnp.cos(jnp.exp(y @ weight))
            return y.sum()

        return jax.grad(loss)(weight)

    found = layers_of_model(trace_step(step, *shapes((8, 8), (16, 8))).graph)
    assert str(found) == "3 layers: scopes attention_[0-9]*, mlp_[0-9]*"


def test_two_stacks_are_cut_on_their_own():
    def step(weight, x):
        def loss(weight):
            y = x
            for stack, depth in (("encoder", 3), ("decoder", 4)):
                for number in range(depth):
                    with jax.named_scope(f"{stack}_{number}"):
                        y = y + jnp.tanh(jnp.sin(y @ weight))
            return y.sum()

        return jax.grad(loss)(weight)

    graph = trace_step(step, *shapes((8, 8), (16, 8))).graph
    found = layers_of_model(graph)
    scopes = [sorted({graph.ops[op].scope for op in ops} - {""}) for ops in found.segments(2, None)]
    assert scopes == [
        ["encoder_0", "encoder_1"],
        ["encoder_2"],
        ["decoder_0", "decoder_1"],
        ["decoder_2", "decoder_3"],
    ]
    assert [len({graph.ops[op].scope for op in ops}) for ops in found.segments(1, frozenset({2, 3}))] == [1, 1]


def test_equal_layers_around_other_work_are_stacks_of_their_own():
    """A sort stands where a solver may: it is in no layer, and layers go on behind it."""

    def step(weight, x):
        def loss(weight):
            y = x
            for depth in (3, 4):
                for _ in range(depth):
                    y = y + jnp.tanh(jnp.sin(y @ weight))
                y = jnp.sort(y * 2.0)
            return y.sum()

        return jax.grad(loss)(weight)

    graph = trace_step(step, *shapes((8, 8), (16, 8))).graph
    found = layers_of_model(graph)
    assert [len(stack) for stack in found.stacks] == [3, 4]
    layers = [[graph.ops[op].primitive for op in sorted(layer)] for stack in found.stacks for layer in stack]
    assert layers == [layers[0]] * 7
    assert {"dot_general", "sin", "tanh", "add"} <= {*layers[0]}


### Compiled programs


@pytest.fixture(scope="module")
def planners():
    """Planners, which compile equal plans once."""
    if not GPU:
        pytest.skip("no compile-only GPU")
    return {
        "residual net": jaxckpt.Planner(residual_net, *RESIDUAL_ARGUMENTS, target="h200"),
        "gpt": jaxckpt.Planner(gpt, *GPT_ARGUMENTS, target="h200"),
    }


@pytest.mark.parametrize("read", [deepspeed, megatron])
@pytest.mark.parametrize("interval", INTERVALS)
def test_a_residual_net_takes_one_segment_and_the_boundaries_to_the_byte(planners, interval, read):
    """A layer's residuals are its input (2 MiB) and its hidden values (8 MiB); its backward takes 6 MiB at the peak."""
    temp_bytes = planners["residual net"].follow(read(interval)).footprint.temp_bytes
    layer_bytes, input_bytes = 10 * MIB, 2 * MIB
    expected = interval * layer_bytes + DEPTH // interval * input_bytes + 6 * MIB
    assert temp_bytes == pytest.approx(expected, abs=64 * 1024)


@pytest.mark.parametrize("interval", [1, 3, 12])  # XLA compiles each for five seconds
def test_a_gpt_without_a_scope_takes_one_segment_and_the_boundaries(planners, interval):
    """The residuals of a layer are a twelfth of those of the step as written; an input is 16 x 128 x 64 floats."""
    planner = planners["gpt"]
    input_bytes = 16 * 128 * WIDTH * 4
    layer_bytes = planner.unplanned.temp_bytes / DEPTH
    temp_bytes = planner.follow(deepspeed(interval)).footprint.temp_bytes
    expected = interval * layer_bytes + DEPTH // interval * input_bytes
    assert temp_bytes == pytest.approx(expected, abs=2.5 * MIB, rel=0.03)


def test_a_scope_that_names_the_layers_gives_the_same_program(planners):
    planner = planners["gpt"]
    named = planner.follow(deepspeed(3, scope="*/layers_*"))
    assert named.footprint.temp_bytes == planner.follow(deepspeed(3)).footprint.temp_bytes


@pytest.mark.skipif(not GPU, reason="no compile-only GPU")
def test_apply_carries_out_the_same_segments(planners):
    applied = jaxckpt.footprint(jaxckpt.apply(residual_net, deepspeed(4)), *RESIDUAL_ARGUMENTS, target="h200")
    assert applied.temp_bytes == planners["residual net"].follow(deepspeed(4)).footprint.temp_bytes


def test_segments_of_the_iterations_of_a_loop_are_refused():
    def step(weights, x):
        def body(y, weight):
            return y + jnp.tanh(jnp.sin(y @ weight)), None

        return jax.grad(lambda weights: jax.lax.scan(body, x, weights)[0].sum())(weights)

    arguments = shapes((DEPTH, 8, 8), (16, 8))
    with pytest.raises(jaxckpt.PolicyError, match=r"segments of 2 layers are not possible .*") as caught:
        jaxckpt.explain(step, *arguments, policy=deepspeed(2))
    assert "all iterations of a loop have one body" in str(caught.value)
    assert any(
        each.carried_out == Recompute() for each in jaxckpt.explain(step, *arguments, policy=deepspeed(1)).values
    )


### Explanations


def test_the_explanation_says_what_was_taken_for_a_layer_and_what_was_overruled():
    keep = jaxckpt.Policy.from_toml(
        '[regions]\nscope = ""\nsegment = 4\n[[rule]]\nprimitive = "tanh"\nlayers = "5"\ndecision = "save"\n'
    )
    explanation = jaxckpt.explain(gpt, *GPT_ARGUMENTS, policy=keep)
    regions = 'regions (12 layers: scopes GPT/layers_[0-9]*) of "unnamed"'
    assert {each.by for each in explanation.values} >= {regions, 'rule 1 of "unnamed"'}
    (kept,) = [each for each in explanation.values if each.by == 'rule 1 of "unnamed"']
    assert kept.value.scope == "GPT/layers_5" and kept.overruled[0] == f"{regions}: recompute"
    saved = {each.value.scope for each in explanation.values if each.carried_out == Save() and each is not kept}
    assert saved == {"GPT/layers_3", "GPT/layers_7", "GPT/layers_11"}  # an embedding costs nothing to look up twice
    inside = [each for each in explanation.values if each.value.scope == "GPT/layers_4" and each.by == regions]
    assert inside and {each.carried_out for each in inside} <= {Recompute(), None}


def test_a_policy_that_takes_more_memory_says_so_by_figures():
    """What is recomputed reads four times as much as it frees, and nothing else keeps that."""

    def step(weight, x):
        def loss(weight):
            with jax.named_scope("wide"):
                y = jnp.tanh(x @ weight)
            with jax.named_scope("narrow"):
                y = y.reshape(TOKENS, WIDTH, 4).max(-1)
            return jnp.sum(jnp.sin(y) * y)

        return jax.grad(loss)(weight)

    arguments = shapes((WIDTH, 4 * WIDTH), (TOKENS, WIDTH))
    frugal = jaxckpt.explain(step, *arguments, policy="nothing")
    assert "more than the step as written" not in str(frugal)
    raised = jaxckpt.explain(step, *arguments, policy=Policy(default="save", regions=Regions(scope="narrow")))
    assert (raised.predicted_bytes > raised.unplanned_bytes) == ("more than the step as written" in str(raised))
