"""Name stacks become paths of names, the same in the forward and in the backward pass."""

import jax
import jax.numpy as jnp
import pytest

from jaxckpt import _compat
from jaxckpt.ir import Phase
from jaxckpt.ir.scope import path_of_marks, repeated
from jaxckpt.program.flat_program import forward_name_stack
from jaxckpt.trace import trace_step

MARKS = {"jvp", "transpose", "vmap"}


def marks(text):
    """A text like "net >jvp block" as name stack entries: a ">" stands before a transformation."""
    return tuple((word.removeprefix(">"), word.startswith(">")) for word in text.split())


@pytest.mark.parametrize(
    ("stack", "path"),
    [
        ("", ""),
        (">jvp GPT block_3 qkv", "GPT/block_3/qkv"),
        (">transpose >jvp GPT block_3 qkv", "GPT/block_3/qkv"),
        ("train >transpose >jvp net", "train/net"),
        (">jvp net >vmap head", "net/head"),
        # A transposed checkpoint, and one whose body is marked as recomputed.
        ("train >transpose >jvp net b1 train >jvp net b1 in", "train/net/b1/in"),
        (">transpose >jvp net >jvp net rematted_computation b1", "net/b1"),
        # The backward of a custom_vjp.
        ("train >transpose train >jvp net cv bwd", "train/net/cv/bwd"),
        # Second order, transposed once and twice.
        (">jvp pen >transpose >jvp net out >jvp pen >jvp net out A", "pen/net/out/A"),
        (
            ">transpose >jvp pen >transpose >jvp net out >jvp pen >jvp net out"
            " >jvp pen >transpose >jvp net out >jvp pen >jvp net out A",
            "pen/net/out/A",
        ),
        # What is really called twice in one another stays.
        (">transpose >jvp net net x", "net/net/x"),
        (">jvp block block", "block/block"),
        # Texts that look like marks, and our own.
        ("jit(step) net", "step/net"),
        ("vmap(net) x", "net/x"),
        (">jvp net jaxckpt pin", "net"),
        (">jvp net b0 checkpoint dense", "net/b0/dense"),
    ],
)
def test_marks_of_transformations_go_and_names_stay(stack, path):
    assert path_of_marks(marks(stack)) == path


def test_marks_without_names_are_no_repetition():
    assert not repeated(marks(">transpose >jvp >transpose >jvp block"))
    assert not repeated(marks(">transpose >jvp >jvp"))


def test_every_backward_scope_is_a_forward_scope():
    @jax.checkpoint
    def block(w, x):
        with jax.named_scope("dense"):
            return jnp.tanh(x @ w)

    def loss(w, x):
        with jax.named_scope("net"):
            for i in range(2):
                with jax.named_scope(f"block_{i}"):
                    x = block(w, x)
        return jnp.sum(x**2)

    def step(w, x):
        with jax.named_scope("train"):
            return jax.grad(loss)(w, x)

    graph = trace_step(step, jnp.ones((3, 3)), jnp.ones((2, 3))).graph
    scopes = {phase: {op.scope for op in graph.ops if op.phase is phase} for phase in Phase}
    assert "train/net/block_1/dense" in scopes[Phase.FORWARD]
    assert scopes[Phase.BACKWARD] <= scopes[Phase.FORWARD] | {"train/net/block_0", "train/net/block_1"}


def test_untransposed_names_the_forward_equation():
    closed = jax.make_jaxpr(jax.grad(lambda x: jnp.sum(jax.named_call(jnp.sin, name="net")(x))))(jnp.ones(3))
    stacks = [eqn.source_info.name_stack for eqn in closed.jaxpr.eqns]
    backward = next(s for s in stacks if "transpose" in str(s) and "net" in str(s))
    assert str(backward) == "transpose(jvp(net))"
    assert str(forward_name_stack(backward)) == "jvp(net)"
    assert _compat.name_stack_marks(backward) == marks(">transpose >jvp net")
