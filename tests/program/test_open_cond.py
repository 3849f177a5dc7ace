"""Conds are opened, residuals of branches connect them, and outlining restores the conds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxckpt
from jaxckpt.ir import Phase
from jaxckpt.ir.regions import COND_END, Branch
from jaxckpt.program.inline import open_jaxpr
from jaxckpt.trace import trace_step
from tests.branched import KINDS, LAYERS, W, X, layers, narrow, nested, scanned, skipped, wide

ARGS = (W, X, KINDS)


@pytest.fixture(scope="module")
def traced():
    return trace_step(layers(wide, narrow, skipped), *ARGS)


def test_branches_of_a_cond_are_siblings_in_the_graph(traced):
    graph = traced.graph
    graph.validate()
    assert "cond" not in {op.primitive for op in graph.ops}
    assert [loop.branch for loop in graph.loops[:3]] == [Branch(cond=0, position=i, of=3) for i in range(3)]
    assert graph.sibling_branches[1] == (0, 1, 2)
    assert graph.runs_per_step(0) == pytest.approx(1 / 3)
    assert {op.scope for op in graph.ops if op.primitive == "tanh"} == {"branch_1"}


def test_a_backward_branch_reads_residuals_of_its_forward_branch(traced):
    graph = traced.graph
    crossing = {
        (one.position, other.position)
        for value, producer in enumerate(graph.producer)
        for reader in graph.readers[value]
        if producer is not None
        and graph.ops[reader].phase is Phase.BACKWARD
        and graph.ops[producer].phase is Phase.FORWARD
        if (one := branch(graph, producer)) is not None and (other := branch(graph, reader)) is not None
    }
    assert crossing == {(0, 0), (1, 1)}


def branch(graph, op):
    loop = graph.ops[op].loop
    return None if loop is None else graph.loops[loop].branch


def test_of_a_cond_only_what_everybody_reads_comes_behind_it(traced):
    graph = traced.graph
    forward = [op for op in graph.ops if op.primitive == COND_END and op.phase is Phase.FORWARD]
    assert len(forward) == LAYERS
    assert all(graph.values[v].shape == X.shape for op in forward for v in op.writes)


def test_a_branch_in_a_loop_stacks_residuals_of_every_iteration():
    graph = trace_step(scanned(wide, narrow), *ARGS).graph
    tanh = next(op.writes[0] for op in graph.ops if op.primitive == "tanh")
    assert graph.saved_instances[tanh] == LAYERS
    assert graph.runs_per_step(graph.ops[graph.producer[tanh]].loop) == LAYERS / 2


def test_conds_in_branches_are_opened_too():
    graph = trace_step(layers(nested, narrow), *ARGS).graph
    assert max(len(path) for path in graph.paths) == 2
    assert {op.scope for op in graph.ops if op.primitive == "tanh"} >= {"branch_0/branch_0", "branch_1"}


def test_layers_are_alike_though_each_is_a_cond_of_its_own():
    graph = trace_step(layers(wide, narrow), *ARGS).graph
    sines = [op.id for op in graph.ops if op.primitive == "sin" and op.loop is not None]
    assert len(sines) == LAYERS
    assert len({graph.op_signatures[op] for op in sines}) == 1


def test_canary_branches_return_empty_for_residuals_of_others():
    forward = next(
        eqn for eqn in open_jaxpr(jax.make_jaxpr(layers(wide, narrow))(*ARGS)).eqns if eqn.primitive.name == "cond"
    )
    primitives = {eqn.primitive.name for branch in forward.params["branches"] for eqn in open_jaxpr(branch).eqns}
    assert primitives & {"empty", "empty2"}


def test_a_key_is_a_residual_of_a_branch():
    """Dropout in a branch: the branch that does nothing gives zeros in the place of the key."""

    def dropped(w, h, key):
        mask = jax.random.bernoulli(key, 0.5, h.shape)
        return jnp.tanh(h @ w) * mask

    def loss(w, x, key):
        for i in range(3):
            own = jax.random.fold_in(key, i)
            x = jax.lax.cond(x.sum() > 0, lambda h, own=own: dropped(w, h, own), lambda h: 2 * h, x)
        return jnp.sum(x**2)

    step = jax.value_and_grad(loss)
    args = jnp.eye(4) / 2, jnp.ones((8, 4)), jax.random.key(0)
    expected = jax.jit(step)(*args)
    for strategy in ("none", "full"):
        planned = jaxckpt.plan(step, *args, budget="1GiB", target="cpu", strategy=strategy).apply(step)
        assert all(map(np.array_equal, jax.tree.leaves(planned(*args)), jax.tree.leaves(expected)))
