"""Every step of the zoo is traced to a valid graph that computes what the step computes, or refused for a reason."""

import functools

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
import pytest

from jaxckpt._errors import NoGradientError
from jaxckpt.ir import Phase
from jaxckpt.trace import trace_step
from tests.residuals import residuals
from tests.zoo import ZOO, entries
from tests.zoo.case import as_numpy, fresh, quick_jit

REFUSED = {*entries(having="no_grad")}
PLANNED = tuple(entry for entry in ZOO if entry not in REFUSED)
LARGE = {"linen", "nnx", "equinox"}
"""Steps that take seconds to compile; `tests/rewrite` compiles each of them once, planned."""
SLOW = {"remat_policies", "encoder_decoder", "tied_transformer", "plain_transformer", "unet"}
"""What takes longest of the others; each has a smaller step of its kind beside it."""


def traced_case(entry):
    if entry.missing:
        pytest.skip(f"needs {', '.join(entry.missing)}")
    return _traced_case(entry)


@functools.cache
def _traced_case(entry):
    case = entry.make()
    traced = trace_step(case.step, *case.args, donate_argnums=case.donate_argnums, static_argnums=case.static_argnums)
    return case, traced


@functools.cache
def expected(entry):
    """What the step itself computes; compiled once for all tests, and quickly."""
    case, traced = traced_case(entry)
    return list(map(as_numpy, quick_jit(traced.flat_function())(*flat_arguments(case, traced))))


def flat_arguments(case, traced):
    return jax.tree.leaves([fresh(arg) for i, arg in enumerate(case.args) if i not in traced.static])


@pytest.mark.parametrize("entry", PLANNED, ids=str)
def test_graphs_are_valid_and_have_something_to_decide(entry):
    _, traced = traced_case(entry)
    graph = traced.graph
    graph.validate()
    assert traced.phases_source == ("structure" if "no_names" in entry.traits else "names")
    assert {op.phase for op in graph.ops} >= {Phase.FORWARD, Phase.BACKWARD}
    assert residuals(graph)
    assert len(traced.variables) == len(graph.values)
    assert len(traced.specs) == len(traced.paths) == len(graph.inputs)


@pytest.mark.parametrize("entry", PLANNED, ids=str)
def test_graphs_are_one_level_deep(entry):
    _, traced = traced_case(entry)
    calls = {"jit", "pjit", "closed_call", "core_call", "remat2", "checkpoint", "eval_jaxpr"}
    assert not calls & {op.primitive for op in traced.graph.ops}
    assert [e.eqn.primitive.name for e in traced.program.equations] == [op.primitive for op in traced.graph.ops]


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param(e, marks=[pytest.mark.slow] if e.name in SLOW else [])
        for e in PLANNED
        if e.name == "linen_gpt_scan_remat" or not LARGE & e.traits
    ],
    ids=str,
)
def test_graphs_compute_what_the_step_computes(entry):
    case, traced = traced_case(entry)
    ours = quick_jit(jex.jaxpr_as_fun(traced.jaxpr))(*flat_arguments(case, traced))
    jax.effects_barrier()
    for mine, theirs in zip(map(as_numpy, ours), expected(entry), strict=True):
        assert mine.dtype == theirs.dtype
        np.testing.assert_allclose(mine, theirs, **tolerance(entry, mine.dtype))


def tolerance(entry, dtype):
    """Rounding differs where XLA fuses otherwise: most in bfloat16, and where an update divides by small roots."""
    loose = {"bf16", "user_remat", "optax", "second_order"} & entry.traits
    return {"rtol": 2e-2 if loose or dtype == jnp.bfloat16 else 1e-4, "atol": 2e-3 if loose else 1e-5}


@pytest.mark.parametrize("entry", entries(having="donated"), ids=str)
def test_donation_is_known(entry):
    if entry in REFUSED:
        pytest.skip("there is nothing to plan")
    case, traced = traced_case(entry)
    donated = [leaf for i in case.donate_argnums for leaf in jax.tree.leaves(case.args[i])]
    unchanged = 4 if "nnx" in str(entry) else 0  # keys of dropout: the user's arrays stay in use
    assert len(traced.donated) == len(traced.graph.donated)
    assert len(donated) - unchanged <= len(traced.donated) <= len(donated)


@pytest.mark.parametrize("entry", [e for e in PLANNED if "module_paths" in e.traits], ids=str)
def test_backward_scopes_are_forward_scopes(entry):
    """Einsums put their formula into the stack; the transposed one has another."""
    _, traced = traced_case(entry)
    forward, backward = (
        {"/".join(part for part in op.scope.split("/") if "->" not in part) for op in traced.graph.ops if op.phase is p}
        for p in (Phase.FORWARD, Phase.BACKWARD)
    )
    assert backward <= forward | {""}


@pytest.mark.parametrize("entry", [e for e in PLANNED if "effects" in e.traits], ids=str)
def test_effects_are_named_on_their_ops(entry):
    _, traced = traced_case(entry)
    assert any(op.effects for op in traced.graph.ops)


@pytest.mark.parametrize("entry", sorted(REFUSED, key=str), ids=str)
def test_steps_without_a_backward_pass_are_refused(entry):
    with pytest.raises(NoGradientError) as caught:
        traced_case(entry)
    assert (caught.value.hidden_in is not None) == ("grad_in_loop" in entry.traits)


def test_checkpoints_of_linen_blocks_are_undone():
    plain, undone = (
        traced_case(next(e for e in ZOO if e.name == name))[1].graph for name in ("linen_gpt", "linen_gpt_remat")
    )
    for phase in Phase:
        for kind in ("contraction", "reduction", "elementwise"):
            counts = [sum(op.phase is phase and op.kind == kind for op in g.ops) for g in (plain, undone)]
            assert counts[0] == counts[1]
