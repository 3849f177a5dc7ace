"""MindSpore's recompute, feature by feature: cells, primitives, outputs, and what devices exchange."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import jaxckpt
from jaxckpt.ir import Recompute, Save
from jaxckpt.policy import Match, Rule
from tests.annotate.residuals import assert_same
from tests.seeds.nets import W, X, again, counted, exchanged, layers, regions, saved


def rule(primitive, decision):
    return Rule(match=Match(primitive=primitive), decision=decision)


### Cells and primitives


def test_everything_in_a_cell_runs_again_but_its_output():
    step = layers(3)
    added = again(step, regions("block_*"), W, X)
    assert (added["tanh"], added["sin"]) == (3, 3)
    assert added["dot_general"] == 3  # the first of each block; the second makes the output, which is kept
    assert saved(step, regions("block_*"), W, X) == ["block_0/dot_general", "block_1/dot_general"]


def exponentials(w, x):
    """Blocks of exp and sin; the derivative of the first is the first itself."""

    def loss(w):
        y = x
        for number in range(3):
            with jax.named_scope(f"block_{number}"):
                y = jnp.sin(jnp.exp(y @ w) @ w)
        return (y**2).sum()

    return jax.value_and_grad(loss)(w)


def test_a_primitive_overrides_its_cell_both_ways():
    vetoed = regions("block_*", rules=(rule("exp", Save()),))
    added = again(exponentials, vetoed, W / 9, X)
    assert (added["exp"], added["cos"]) == (0, 3)
    forced = regions("block_1", rules=(rule("exp", Recompute()),))
    assert again(exponentials, regions("block_1"), W / 9, X)["exp"] == 1
    assert again(exponentials, forced, W / 9, X)["exp"] == 3
    for policy in (vetoed, forced):
        assert_same(jax.jit(jaxckpt.apply(exponentials, policy))(W / 9, X), exponentials(W / 9, X))


def test_outputs_that_are_computed_again_merge_neighbours():
    step = layers(3)
    merged = regions("block_*", output_recompute=True)
    assert saved(step, merged, W, X) == []
    assert counted(step, None, W, X)["tanh"] == 3
    assert counted(step, regions("block_*"), W, X)["tanh"] == 6
    assert counted(step, merged, W, X)["tanh"] == 6  # twice, once for all neighbours and not once for each
    assert again(step, merged, W, X)["dot_general"] == again(step, regions("block_*"), W, X)["dot_general"] + 2
    assert_same(jax.jit(jaxckpt.apply(step, merged))(W, X), step(W, X))


@pytest.mark.parametrize("policy", ["mindspore_cell", "nothing", "everything"])
def test_losses_of_three_steps_are_equal_for_every_policy(policy):
    step = jax.jit(layers(3))
    planned = jax.jit(jaxckpt.apply(layers(3), policy))
    one = other = W
    for _ in range(3):
        (loss, (g, _)), (same, (h, _)) = step(one, X), planned(other, X)
        assert_same(loss, same)
        one, other = one - 1e-4 * g, other - 1e-4 * h


def test_loops_branches_and_jits_inside_a_cell_run_again_with_it():
    @jax.jit
    def inner(x, w):
        return jnp.tanh(x @ w)

    def loss(w, x):
        with jax.named_scope("cell"):
            x = inner(x, w)
            x = jax.lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x)
            x, _ = jax.lax.scan(lambda c, _: (jnp.exp(c @ w), None), x, None, length=2)
        return (x**2).sum()

    step = jax.value_and_grad(loss)
    assert again(step, regions("cell"), W / 9, X)["tanh"] == 1
    assert_same(jax.jit(jaxckpt.apply(step, regions("cell")))(W / 9, X), step(W / 9, X))


### What devices exchange

NARROW, WIDE = 16, 64


@pytest.fixture
def mesh():
    if jax.device_count() < 8:
        pytest.skip("fewer than eight devices")
    return jax.make_mesh((8,), ("model",), axis_types=(AxisType.Auto,))


def place(mesh, array, *axes):
    return jax.device_put(array, NamedSharding(mesh, PartitionSpec(*axes)))


def blocks(part):
    """The gradient of two blocks around one part, by weights."""

    def loss(weights, x):
        for number, (one, other) in enumerate(weights):
            with jax.named_scope(f"block_{number}"):
                x = jnp.sin(part(x, one, other))
        return (x**2).sum()

    return jax.value_and_grad(loss)


def weights():
    one = jnp.linspace(-0.1, 0.2, NARROW * WIDE).reshape(NARROW, WIDE)
    return jnp.linspace(-1, 1, 32 * NARROW).reshape(32, NARROW), one, one.T


def tensor_parallel(mesh):
    """Two blocks whose result is a sum over the devices."""

    def part(x, one, other):
        return jax.lax.psum(jnp.tanh(x @ one) @ other, "model")

    columns, rows = PartitionSpec(None, "model"), PartitionSpec("model", None)
    whole = PartitionSpec()
    step = blocks(jax.shard_map(part, mesh=mesh, in_specs=(whole, columns, rows), out_specs=whole, check_vma=False))
    x, one, other = weights()
    return step, ([(place(mesh, one, *columns), place(mesh, other, *rows))] * 2, place(mesh, x))


def gathering(mesh):
    """Two blocks that gather a sequence cut over the devices."""

    def part(x, one, other):
        whole = jax.lax.all_gather(x, "model", axis=0, tiled=True)
        mine = jnp.tanh(whole @ one) @ other
        return jax.lax.psum_scatter(mine, "model", scatter_dimension=0, tiled=True)

    cut, columns, rows = PartitionSpec("model"), PartitionSpec(None, "model"), PartitionSpec("model", None)
    step = blocks(jax.shard_map(part, mesh=mesh, in_specs=(cut, columns, rows), out_specs=cut, check_vma=False))
    x, one, other = weights()
    return step, ([(place(mesh, one, *columns), place(mesh, other, *rows))] * 2, place(mesh, x, *cut))


COLLECTIVES = pytest.mark.parametrize(
    ("make", "primitive", "collective"),
    [(tensor_parallel, "psum", "all-reduce"), (gathering, "all_gather", "all-gather")],
)
KEPT, AGAIN = regions("block_*", recompute_collectives=False), regions("block_*")


@COLLECTIVES
def test_collectives_run_again_or_not_as_the_policy_says(mesh, make, primitive, collective):
    step, args = make(mesh)
    assert again(step, KEPT, *args)[primitive] == 0
    assert again(step, AGAIN, *args)[primitive] == 2
    assert exchanged(jaxckpt.apply(step, KEPT), *args) == exchanged(step, *args)
    for policy in (KEPT, AGAIN):
        assert_same(jax.jit(jaxckpt.apply(step, policy))(*args), jax.jit(step)(*args))


@COLLECTIVES
def test_products_run_again_where_their_collectives_are_kept(mesh, make, primitive, collective):
    step, args = make(mesh)
    added = again(step, KEPT, *args)
    assert (added["dot_general"], added["tanh"], added[primitive]) == (2, 2, 0)
    assert again(step, regions("block_*"), *args)["dot_general"] > 2


@pytest.mark.skipif(jax.__version_info__ < (0, 12), reason="this CPU compiler merges what barriers keep apart")
@COLLECTIVES
def test_collectives_that_run_again_are_in_the_compiled_program(mesh, make, primitive, collective):
    step, args = make(mesh)
    assert exchanged(jaxckpt.apply(step, AGAIN), *args)[collective] == exchanged(step, *args)[collective] + 2


def fully_sharded(mesh):
    """Two blocks whose parameters lie in shards and are gathered where they are used."""

    def part(x, one, other):
        one, other = (jax.lax.with_sharding_constraint(w, NamedSharding(mesh, PartitionSpec())) for w in (one, other))
        return jnp.tanh(x @ one) @ other

    x, one, other = weights()
    return blocks(part), ([(place(mesh, one, "model"), place(mesh, other, "model"))] * 2, place(mesh, x, "model"))


def test_gathered_parameters_are_recomputed_as_configured(mesh):
    step, args = fully_sharded(mesh)
    plain = exchanged(step, *args)["all-gather"]
    assert plain == 4
    kept = jaxckpt.apply(step, regions("block_*"))
    gathered = jaxckpt.apply(step, regions("block_*", recompute_gathered_parameters=True))
    assert exchanged(kept, *args)["all-gather"] == plain
    assert exchanged(gathered, *args)["all-gather"] == 2 * plain
    for planned in (kept, gathered):
        assert_same(jax.jit(planned)(*args), jax.jit(step)(*args))
