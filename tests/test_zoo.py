"""The zoo itself: every case runs, is what its traits say, and its hand-written derivatives are right.

What can be read off a jaxpr or the arguments is held against the table both ways: a trait that is claimed must be
there, and one that is there must be claimed.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.zoo import LIBRARIES, TRAITS, ZOO, Case, Entry, entries, named, numbers
from tests.zoo.case import is_jitted, is_key

pytestmark = pytest.mark.slow  # every step is compiled; `make slow` runs them

LARGE = 1000
"""Elements from which on a constant is more than a small table of the library's."""


def each(table: tuple[Entry, ...] = ZOO):
    """One test for each entry, skipped where its library is not installed."""
    return pytest.mark.parametrize("entry", [pytest.param(e, id=e.name, marks=_skip(e)) for e in table])


def _skip(entry: Entry) -> list[pytest.MarkDecorator]:
    return [pytest.mark.skip(reason=f"needs {', '.join(entry.missing)}")] if entry.missing else []


@cache
def case_of(entry: Entry) -> Case:
    return entry.make()


@cache
def traced(entry: Entry) -> Any:
    case = case_of(entry)
    step = case.step if is_jitted(case.step) else jax.jit(case.step, static_argnums=case.static_argnums)
    return step.trace(*case.args)


@cache
def contents(entry: Entry) -> "Contents":
    held = Contents()
    held.add(traced(entry).jaxpr)
    return held


@dataclass(frozen=True, slots=True)
class Contents:
    """What all levels of a jaxpr hold."""

    primitives: Counter[str] = field(default_factory=Counter)
    dtypes: set[str] = field(default_factory=set)
    stacks: set[str] = field(default_factory=set)
    loops: list[tuple[str, set[str]]] = field(default_factory=list)
    """Of each loop its own name stack and those of its body."""
    constants: list[int] = field(default_factory=list)

    def add(self, jaxpr: Any) -> None:
        self.constants.extend(np.size(constant) for constant in getattr(jaxpr, "consts", ()))
        for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
            stack = str(equation.source_info.name_stack)
            self.stacks.add(stack)
            self.primitives[equation.primitive.name.replace("-", "_")] += 1
            self.dtypes.update(str(v.aval.dtype) for v in equation.outvars if hasattr(v.aval, "dtype"))
            for inner in inner_jaxprs(equation):
                if equation.primitive.name in ("scan", "while"):
                    self.loops.append((stack, {str(e.source_info.name_stack) for e in inner.eqns}))
                self.add(inner)

    def marks(self, pattern: str) -> bool:
        return any(re.search(pattern, stack) for stack in self.stacks)


def inner_jaxprs(equation: Any) -> Iterator[Any]:
    for parameter in equation.params.values():
        for one in parameter if isinstance(parameter, tuple | list) else (parameter,):
            if hasattr(one, "eqns"):
                yield one


def read_traits(entry: Entry) -> set[str]:
    """The traits that the jaxpr and the arguments show: all but `NOT_READ`."""
    case, held = case_of(entry), contents(entry)
    leaves = jax.tree.leaves([arg for i, arg in enumerate(case.args) if i not in case.static_argnums])
    results = jax.tree.leaves(traced(entry).out_info, is_leaf=lambda leaf: leaf is None)
    shown = {
        "scan": "scan" in held.primitives,
        "while": "while" in held.primitives,
        "cond": "cond" in held.primitives,
        "conv": "conv_general_dilated" in held.primitives,
        "gather": {"gather", "scatter_add"} <= held.primitives.keys(),
        "rng": "random_bits" in held.primitives,
        "user_remat": bool({"remat2", "checkpoint", "remat"} & held.primitives.keys()),
        "named_values": "name" in held.primitives,
        "callback": bool({"pure_callback", "io_callback", "debug_callback", "debug_print"} & held.primitives.keys()),
        "effects": bool(traced(entry).jaxpr.effects),
        "constants": max(held.constants, default=0) > LARGE,
        "bf16": "bfloat16" in held.dtypes,
        "second_order": held.marks(r"^jvp\(.*transpose\("),
        "vmapped_grad": held.marks(r"vmap\(transpose\("),
        "no_names": not held.marks(r"jvp\(|transpose\("),
        # Spaces and commas are einsum's: its formula is a scope of its own.
        "module_paths": held.marks(r"jvp\([A-Za-z_]\w*\)"),
        "grad_in_loop": any(
            stack == "" and any(s.startswith("jvp(") for s in body) and any(s.startswith("transpose(") for s in body)
            for stack, body in held.loops
        ),
        "donated": bool(case.donate_argnums),
        "jitted": is_jitted(case.step),
        "static_args": bool(case.static_argnums),
        "python_scalars": any(isinstance(leaf, int | float) for leaf in leaves),
        "prng_keys": any(is_key(leaf) for leaf in leaves),
        "keys_in_state": any(has_kind(leaf, jax.dtypes.prng_key) for leaf in results),
        "other_leaves": any(
            leaf is None or has_kind(leaf, jnp.integer) or has_kind(leaf, jnp.bool_) for leaf in results
        ),
    }
    return {trait for trait, there in shown.items() if there}


def has_kind(leaf: Any, kind: Any) -> bool:
    return leaf is not None and jax.dtypes.issubdtype(leaf.dtype, kind)


NOT_READ = {
    "unrolled",
    "nested_jit",
    "aux",
    "several_grads",
    "custom_vjp",
    "custom_jvp",
    "no_grad",
    "batch_norm",
    *LIBRARIES,
}
"""What no jaxpr shows, because libraries do the same inside."""


@each()
def test_the_traits_that_can_be_seen_are_those_of_the_table(entry):
    assert read_traits(entry) == entry.traits - NOT_READ


@each()
def test_name_stacks_of_gradient_steps_have_a_backward_pass(entry):
    assert contents(entry).marks(r"transpose\(") == (not entry.traits & {"no_grad", "no_names"})


@each()
def test_numbers_are_finite_repeatable_and_delete_no_arguments(entry):
    case = case_of(entry)
    first, second = numbers(case), numbers(case)
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)
        assert np.isfinite(one).all()
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(case.args) if isinstance(leaf, jax.Array))


@each(entries(lacking="no_grad"))
def test_a_step_moves_its_state(entry):
    case = case_of(entry)
    state = {leaf.tobytes() for leaf in map(np.asarray, floats(case.args))}
    moved = [leaf for leaf in numbers(case) if leaf.dtype == np.float32 and leaf.tobytes() not in state]
    # Half of one entry's parameters are frozen.
    assert len(moved) >= len(floats(case.args[0])) / 2


def floats(tree: Any) -> list[Any]:
    return [leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array) and leaf.dtype == jnp.float32]


@each()
def test_the_other_size_can_be_made_and_is_larger(entry):
    tiny, small = (sum(map(np.size, jax.tree.leaves(c.args))) for c in (case_of(entry), entry.make("small")))
    assert tiny < small


def test_names_are_unique_and_every_trait_has_an_entry():
    assert len({entry.name for entry in ZOO}) == len(ZOO)
    assert {trait for entry in ZOO for trait in entry.traits} == TRAITS.keys()


def test_a_trait_that_is_not_of_the_table_is_refused():
    with pytest.raises(ValueError, match=r"odd has traits that TRAITS lacks: \['unroled'\]"):
        Entry("odd", lambda size="tiny": None, frozenset({"unroled", "scan"}))
    with pytest.raises(ValueError, match="unroled"):
        entries(having="unroled")


def test_entries_are_chosen_by_what_they_have_and_lack():
    chosen = entries(having="linen scan", lacking="user_remat")
    assert [entry.name for entry in chosen] == ["linen_gpt_scan"]


def test_the_table_needs_no_library_until_a_case_is_made():
    assert named("linen_gpt").missing == ()
    nowhere = Entry("nowhere", lambda size="tiny": None, frozenset({"linen"}))
    assert set(nowhere.missing) <= {"flax"}


def assert_trees_close(ours: Any, theirs: Any, **tolerance: float) -> None:
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(one, other, **tolerance)


def test_the_backward_pass_written_by_hand_is_the_gradient():
    from tests.zoo import manual_backward

    case = manual_backward.mlp()
    params, x, y = case.args

    def by_jax(params, x, y):
        loss, grads = jax.value_and_grad(lambda p: jnp.mean((manual_backward.forward(p, x)[0] - y) ** 2))(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss

    assert_trees_close(jax.jit(case.step)(params, x, y), jax.jit(by_jax)(params, x, y), rtol=1e-4, atol=1e-6)


def test_flash_attention_and_its_gradient_are_those_of_attention():
    from tests.zoo.flash_attention import flash_attention

    q, k, v, g = jax.random.normal(jax.random.key(0), (4, 2, 8, 4))

    def attention(q, k, v):
        return jax.nn.softmax(q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5) @ v

    ours, ours_back = jax.vjp(lambda *qkv: flash_attention(*qkv, 2), q, k, v)
    theirs, theirs_back = jax.vjp(attention, q, k, v)
    assert_trees_close((ours, ours_back(g)), (theirs, theirs_back(g)), rtol=1e-4, atol=1e-5)


def test_the_gradient_of_a_fixed_point_is_that_of_many_turns():
    from tests.zoo import fixed_point

    params, x, _ = fixed_point.deep_equilibrium().args
    p = params["cell"]

    def unrolled(p, x):
        z = jnp.zeros_like(x)
        for _ in range(60):
            z = fixed_point.cell(p, z, x)
        return z

    z = fixed_point.equilibrium(p, x)
    np.testing.assert_allclose(z, fixed_point.cell(p, z, x), atol=1e-5)
    ours = jax.jit(jax.grad(lambda p: jnp.sum(fixed_point.equilibrium(p, x) ** 2)))(p)
    theirs = jax.jit(jax.grad(lambda p: jnp.sum(unrolled(p, x) ** 2)))(p)
    assert_trees_close(ours, theirs, rtol=1e-3, atol=1e-3)


def test_a_linear_recurrence_in_logarithmic_depth_is_the_loop():
    from tests.zoo.lstm import linear_recurrence

    decay, x = jax.random.uniform(jax.random.key(0), (2, 3, 8, 4))
    h, loop = jnp.zeros((3, 4)), []
    for t in range(8):
        h = decay[:, t] * h + x[:, t]
        loop.append(h)
    np.testing.assert_allclose(linear_recurrence(decay, x), jnp.stack(loop, axis=1), rtol=1e-5)


def test_experts_with_room_for_all_are_the_sum_of_the_chosen():
    from tests.zoo import experts

    (p, _), x, _ = experts.mixture().args
    gates, chosen = jax.lax.top_k(jax.nn.softmax(x @ p["router"]), 2)
    every = jnp.einsum("teh,ehd->ted", jax.nn.gelu(jnp.einsum("td,edh->teh", x, p["up"])), p["down"])
    expected = x + jnp.einsum("tk,tkd->td", gates, jnp.take_along_axis(every, chosen[..., None], axis=1))
    np.testing.assert_allclose(experts.expert_layer(p, x)[0], expected, rtol=1e-4, atol=1e-5)


def test_a_scanned_transformer_computes_the_same_as_unrolled():
    ours, theirs = (numbers(case_of(named(name))) for name in ("plain_transformer_scan", "plain_transformer"))
    assert sum(leaf.size for leaf in ours) == sum(leaf.size for leaf in theirs)
    np.testing.assert_allclose(ours[-1], theirs[-1], rtol=1e-5)


def test_what_the_author_recomputes_changes_no_number():
    pytest.importorskip("flax")
    ours, theirs = (numbers(case_of(named(name))) for name in ("linen_gpt_remat", "linen_gpt"))
    np.testing.assert_allclose(ours[-1], theirs[-1], rtol=1e-2)


@pytest.mark.parametrize(("name", "lines"), [("debug_print", 2), ("ordered_callback", 2)])
def test_effects_happen_once_for_each_run(name, lines, capsys):
    numbers(case_of(named(name)))
    jax.effects_barrier()
    assert len(capsys.readouterr().out.splitlines()) == lines


def test_a_step_that_donates_takes_its_own_copies():
    case = named("jitted_and_donated").make()
    copies = jax.tree.map(jnp.copy, case.args)
    case.step(*copies)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(copies[:2]))
    assert numbers(case)
