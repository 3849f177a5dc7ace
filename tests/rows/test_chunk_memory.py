"""The compiled memory of a loss head in pieces: large values are those of one piece."""

import jax
import jax.numpy as jnp
import optax
import pytest

import jaxckpt
from jaxckpt.compiler.compile import lower_flat
from jaxckpt.ir import Phase
from jaxckpt.machine import Target, targets
from jaxckpt.planner import Planner
from jaxckpt.program.inline import open_jaxpr
from jaxckpt.rewrite.chunk_rows import Chunk, with_chunk
from jaxckpt.rows import find_regions
from jaxckpt.trace import trace_step

GPU = any(status.name == "h200" and status.usable for status in targets())
BATCH, SEQUENCE, WIDTH, VOCABULARY = 4, 512, 128, 16384
LOGITS_BYTES = 4 * BATCH * SEQUENCE * VOCABULARY
WEIGHTS_BYTES = 4 * WIDTH * VOCABULARY

SPECS = (
    {
        "in": jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32),
        "out": jax.ShapeDtypeStruct((WIDTH, VOCABULARY), jnp.float32),
    },
    jax.ShapeDtypeStruct((BATCH, SEQUENCE, WIDTH), jnp.float32),
    jax.ShapeDtypeStruct((BATCH, SEQUENCE), jnp.int32),
)


def loss(parameters, x, labels):
    logits = jnp.tanh(x @ parameters["in"]) @ parameters["out"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


step = jax.value_and_grad(loss)


def in_pieces(traced, pieces):
    region = find_regions(traced).with_pieces(pieces)
    return with_chunk(traced, Chunk(region=region, pieces=pieces))


def temporaries(traced):
    closed = traced.jaxpr

    def call(*flat):
        return jax.core.eval_jaxpr(open_jaxpr(closed), getattr(closed, "consts", ()), *flat)

    return lower_flat(call, traced.specs, target=Target("h200"), name="head").compile().footprint.temp_bytes


@pytest.mark.skipif(not GPU, reason="XLA's compiler for GPUs is not installed")
def test_temporaries_fall_with_the_number_of_pieces():
    traced = trace_step(step, *SPECS)
    as_written = temporaries(traced)
    assert as_written >= LOGITS_BYTES
    for pieces in (4, 16):
        # The hidden states and their gradient, and the accumulator of the head's weights, are not divided.
        undivided = 4 * 4 * BATCH * SEQUENCE * WIDTH + WEIGHTS_BYTES
        assert temporaries(in_pieces(traced, pieces)) <= as_written / pieces + undivided


@pytest.mark.skipif(not GPU, reason="XLA's compiler for GPUs is not installed")
def test_a_step_in_pieces_can_be_planned():
    traced = in_pieces(trace_step(step, *SPECS), 8)
    planner = Planner.of_traced(traced, target=Target("h200"))
    smallest = planner.smallest().footprint
    assert smallest.temp_bytes < LOGITS_BYTES / 2
    assert smallest.total_bytes < jaxckpt.Planner(step, *SPECS, target="h200").smallest().footprint.total_bytes / 2


def test_the_loop_over_pieces_is_one_op_of_the_backward():
    traced = in_pieces(trace_step(step, *SPECS), 8)
    (scan,) = (op for op in traced.graph.ops if op.primitive == "scan")
    assert scan.phase is Phase.BACKWARD
    products = 3 * 2 * BATCH * SEQUENCE * WIDTH * VOCABULARY
    assert products <= scan.flops < 1.01 * products
    assert scan.workspace_bytes < LOGITS_BYTES
    after = False
    for op in traced.graph.ops:
        after |= op.phase is not Phase.FORWARD
        assert not (after and op.phase is Phase.FORWARD)
