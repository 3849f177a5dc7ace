"""The floor: what stands at the peak of the smallest plan is named, and its remedies keep what they say."""

import jax
import jax.numpy as jnp
import pytest

import jaxckpt
from jaxckpt._errors import InfeasibleBudgetError
from jaxckpt.annotate import chunked
from jaxckpt.hlo import Role
from jaxckpt.planner import Holder, Planner, floor_of
from jaxckpt.report import floor_report, render_text
from tests.memory_maps import MIB, buffer, made_footprint, memory_map
from tests.planner.test_planner import needs_compiler

pytestmark = pytest.mark.usefixtures("no_local_search")

Spec = jax.ShapeDtypeStruct
TOKENS, WIDTH, VOCABULARY = 4096, 256, 32768


def layers(weights, x):
    for w in weights:
        x = jnp.tanh(x @ w)
    return x


def cross_entropy(hidden, labels, head):
    logits = (hidden @ head).astype(jnp.float32)
    chosen = jnp.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
    return (jax.nn.logsumexp(logits, axis=-1) - chosen).sum()


def head_step(weights, head, x, labels, chunks=None):
    part = chunked(cross_entropy, chunks=chunks, axis=(0, 0, None), join="sum") if chunks else cross_entropy

    def loss(weights, head):
        return part(layers(weights, x), labels, head)

    return jax.grad(loss, argnums=(0, 1))(weights, head)


HEAD_ARGS = (
    [Spec((WIDTH, WIDTH), jnp.bfloat16)] * 4,
    Spec((WIDTH, VOCABULARY), jnp.bfloat16),
    Spec((TOKENS, WIDTH), jnp.bfloat16),
    Spec((TOKENS,), jnp.int32),
)


def orthogonal_step(weights, x):
    """Gradients are made orthogonal, two products each."""

    def orthogonal(gradient):
        return 1.5 * gradient - 0.5 * (gradient @ gradient.T) @ gradient

    gradients = jax.grad(lambda weights: (layers(weights, x) ** 2).mean())(weights)
    return jax.tree.map(lambda w, g: w - 0.1 * orthogonal(g), weights, gradients)


def pairs_step(weights, x):
    """One product of all pairs, far larger than the layers."""

    def loss(weights):
        hidden = layers(weights, x)
        return ((jax.nn.softmax(hidden @ hidden.T) @ hidden) ** 2).mean()

    return jax.grad(loss)(weights)


@pytest.fixture(scope="module")
def head_planner():
    return Planner(head_step, *HEAD_ARGS, target="h200")


def assert_adds_up(floor):
    assert sum(share.size_bytes for share in floor.shares) == floor.total_bytes
    assert all(share.size_bytes > 0 for share in floor.shares)
    sizes = [share.size_bytes for share in floor.shares]
    assert sizes == sorted(sizes, reverse=True)


@needs_compiler
def test_a_loss_head_at_the_peak_is_named_with_its_chunks(head_planner):
    floor = head_planner.floor()
    assert_adds_up(floor)
    assert floor.shares[0].holder is Holder.LOGITS
    assert floor.of("head") >= TOKENS * VOCABULARY * 4
    assert floor.shares[0].largest[0].shape == (TOKENS, VOCABULARY)
    assert floor.undecided_share > 0.9
    assert "jaxckpt.chunked" in floor.remedies[0].command


@needs_compiler
def test_chunks_lower_the_floor_by_about_what_was_said(head_planner):
    floor = head_planner.floor()
    remedy = floor.remedies[0]
    chunks = int(remedy.command.partition("chunks=")[2].partition(",")[0])

    def step(*args):
        return head_step(*args, chunks=chunks)

    lowered = Planner(step, *HEAD_ARGS, target="h200").floor()
    assert floor.total_bytes - lowered.total_bytes == pytest.approx(remedy.saves_bytes, rel=0.15)
    assert lowered.of("head") < floor.of("head") / 2


@needs_compiler
def test_the_error_of_a_budget_advises_what_lowers_the_floor(head_planner):
    with pytest.raises(
        InfeasibleBudgetError, match=r"the loss head in chunks, about .* less: jaxckpt\.chunked"
    ) as caught:
        head_planner.plan(budget="200MiB")
    assert caught.value.floor == head_planner.floor()
    assert caught.value.floor.total_bytes == caught.value.minimum_bytes


@needs_compiler
def test_an_update_at_the_peak_is_named():
    args = [Spec((2048, 2048), jnp.float32)] * 2, Spec((64, 2048), jnp.float32)
    floor = Planner(orthogonal_step, *args, target="h200", donate_argnums=0).floor()
    assert_adds_up(floor)
    assert floor.of("update") + floor.of("gradients") >= 2 * 2048 * 2048 * 4
    assert "a part of the update at a time" in {remedy.title for remedy in floor.remedies}
    assert floor.undecided_share > 0.7


@needs_compiler
def test_results_that_are_not_donated_are_named():
    args = [Spec((1024, 1024), jnp.float32)] * 2, Spec((64, 1024), jnp.float32)
    kept, given = (Planner(orthogonal_step, *args, target="h200", donate_argnums=d).floor() for d in ((), (0,)))
    remedy = next(each for each in kept.remedies if each.title == "donate the state")
    assert remedy.saves_bytes == 2 * 4 * MIB
    assert "donate the state" not in {each.title for each in given.remedies}
    assert kept.of("results") - given.of("results") == remedy.saves_bytes


@needs_compiler
def test_one_op_at_the_peak_is_named():
    args = [Spec((64, 64), jnp.float32)] * 2, Spec((4096, 64), jnp.float32)
    floor = Planner(pairs_step, *args, target="h200").floor()
    assert_adds_up(floor)
    assert floor.shares[0].holder is Holder.SINGLE_OP
    assert floor.of("op") >= 2 * 4096 * 4096 * 4
    assert floor.shares[0].largest[0].shape == (4096, 4096)
    assert floor.remedies[0].title == "one op in chunks"
    assert "not decided by residuals" in render_text(floor_report(floor))


def test_what_a_buffer_is_for_follows_its_role():
    memory = memory_map()
    floor = floor_of(made_footprint(memory, temp_bytes=memory.temp_bytes), step="train")
    assert_adds_up(floor)
    held = {str(share.holder): share.size_bytes // MIB for share in floor.shares}
    assert held == {"arguments": 8, "head": 4, "residuals": 3, "holes": 1}
    assert floor.undecided_bytes == 13 * MIB
    assert floor.undecided_share == 13 / 16


def test_a_remedy_that_moves_the_peak_saves_only_the_difference():
    memory = memory_map()
    late = buffer(5, "GPT/block_0", 5, 5, 6 * MIB, role=Role.COTANGENT)
    memory = memory_map(buffers=(*memory.buffers[:3], memory.buffers[3], late, memory.buffers[4]))
    assert [memory.live_bytes[at] // MIB for at in (3, 4, 5)] == [7, 7, 9]
    floor = floor_of(made_footprint(memory))
    assert not any("head" in remedy.title for remedy in floor.remedies)  # the logits are not at the peak
    memory = memory_map(buffers=(*memory.buffers[:4], buffer(5, "", 5, 5, 2 * MIB, role=Role.UPDATE)))
    (remedy,) = (r for r in floor_of(made_footprint(memory, argument_bytes=0)).remedies if "head" in r.title)
    assert remedy.saves_bytes == 2 * MIB  # from 7 to the 5 of the update


@pytest.mark.parametrize(("turns", "holder"), [(1, Holder.SINGLE_OP), (32, Holder.RESIDUALS)])
def test_a_residual_stack_belongs_to_no_one_op(turns, holder):
    memory = memory_map()
    stack = buffer(5, "GPT", 2, 4, 16 * MIB, op="dynamic_update_slice", count=turns)
    memory = memory_map(buffers=(*memory.buffers[:3], stack, memory.buffers[4]))
    floor = floor_of(made_footprint(memory))
    assert floor.of(holder) >= 16 * MIB
    assert any(remedy.title == "one op in chunks" for remedy in floor.remedies) is (turns == 1)


def test_without_a_memory_map_only_totals_are_compared():
    floor = floor_of(made_footprint(None))
    assert [(share.holder, share.size_bytes // MIB) for share in floor.shares] == [("arguments", 8), ("other", 8)]
    assert "totals alone" in render_text(floor_report(floor))


def test_arguments_that_are_most_of_it_are_to_be_sharded():
    floor = floor_of(made_footprint(memory_map(), argument_bytes=80 * MIB))
    assert floor.remedies[0].title == "shard the arguments"
    assert floor.remedies[0].saves_bytes == 40 * MIB


def test_a_notebook_shows_it():
    floor = floor_of(made_footprint(memory_map()), step="train")
    assert isinstance(floor, jaxckpt.Floor)
    assert "What it is for" in floor._repr_html_()


@needs_compiler
def test_layers_of_one_width_are_not_one_wide_op():
    def step(weights, x):
        def loss(weights):
            hidden = x
            for w in weights:
                hidden = hidden @ w
                hidden = jax.nn.relu((hidden - hidden.mean(0)) * jax.lax.rsqrt(hidden.var(0) + 1e-5))
            return jnp.mean(hidden**3)

        value, gradients = jax.value_and_grad(loss)(weights)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), value

    args = [jax.ShapeDtypeStruct((64, 64), "float32")] * 5, jax.ShapeDtypeStruct((8192, 64), "float32")
    floor = Planner(step, *args, target="h200", donate_argnums=0).floor()
    assert not floor.of(Holder.SINGLE_OP)
    assert all(remedy.title != "one op in chunks" for remedy in floor.remedies)
