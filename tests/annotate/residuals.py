"""What a function keeps for its backward pass, and how often it computes something."""

from collections import Counter
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp

import jaxckpt

SAVE_NOTHING = jaxckpt.Policy(name="nothing", default="recompute")
SAVE_ALL = jaxckpt.Policy(name="everything", default="save")


def policy(*rules: str, default: str = "recompute") -> jaxckpt.Policy:
    """A policy of rules such as 'primitive = "tanh"', each of which saves unless it says otherwise."""
    texts = [rule if "decision" in rule else f'{rule}\ndecision = "save"' for rule in rules]
    return jaxckpt.Policy.from_toml("\n".join([f'default = "{default}"', *(f"[[rule]]\n{text}" for text in texts)]))


DOTS = policy('primitive = "contraction"')


def kept(function: Any, *args: Any) -> Counter[str]:
    """The arrays that the backward of a function holds besides its arguments, by type."""
    specs = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), args)
    jaxpr = jax.make_jaxpr(lambda *xs: jax.vjp(function, *xs)[1])(*specs)
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    made = {v for eqn in jaxpr.eqns for v in eqn.outvars}
    held = {v for v in jaxpr.outvars if isinstance(v, jex.Var) and v in made}
    return Counter(v.aval.str_short() for v in held)


def count(function: Any, *args: Any) -> Counter[str]:
    """How many equations of each primitive a function has, bodies included."""
    found: Counter[str] = Counter()

    def walk(jaxpr: Any) -> None:
        for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
            found[eqn.primitive.name] += 1
            for inner in jex.jaxprs_in_params(eqn.params):
                walk(inner)

    walk(jax.make_jaxpr(function)(*args))
    return found


def assert_same(one: Any, other: Any) -> None:
    """Trees with the same values at the same paths, up to rounding; a scoped class may hold them."""
    paths = [[path for path, _ in jax.tree_util.tree_leaves_with_path(tree)] for tree in (one, other)]
    assert paths[0] == paths[1]
    for left, right in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert jnp.shape(left) == jnp.shape(right)
        if jnp.issubdtype(jnp.asarray(left).dtype, jax.dtypes.prng_key):
            left, right = jax.random.key_data(left), jax.random.key_data(right)
        assert jnp.allclose(left, right, rtol=1e-6, atol=1e-6)
