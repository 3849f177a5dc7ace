"""Marks in users' code: names for values, scopes for parts, and policies carried out where they stand.

Read in this order: `name` (values), `saved` (which tags JAX keeps), `body` (a traced part, loops and all), `tag` (what
a policy decides about it, written into it), `checkpoint` (`jax.checkpoint` over that), `linen` and `nnx` (modules with
state), `target` (functions, classes, objects), `scope` (what users write), `jax_policy` (a policy for `jax.checkpoint`
itself). Apart from these: `chunks` (a part done some tokens at a time).
"""

from jaxckpt.annotate.chunked import chunked
from jaxckpt.annotate.jax_policy import as_jax
from jaxckpt.annotate.name import name
from jaxckpt.annotate.scope import Scope, scope

__all__ = ["Scope", "as_jax", "chunked", "name", "scope"]
