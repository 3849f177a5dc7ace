"""Annotations in users' code: names for values, scopes for parts, and policies that are carried out in a scope.

Read in this order: `naming` (values), `jax_policy` (policies as callables for `jax.checkpoint`), `open_body` (a traced
part with the bodies of its loops), `tagging` (tags on the values that a policy saves), `checkpoint` (`jax.checkpoint`
over the tagged part), `flax_modules` (Linen and NNX), `decorate` (functions, classes, objects), `scoping` (the public
function). Apart from these: `chunking` (a part done some tokens at a time).
"""

from jaxckpt.annotate.chunking import chunked as chunked
from jaxckpt.annotate.jax_policy import as_jax as as_jax
from jaxckpt.annotate.naming import name as name
from jaxckpt.annotate.scoping import Scope as Scope, scope as scope
