"""A function whose residuals a policy decides about, by `jax.checkpoint` with a policy of names.

The function is traced, the policy meets what was traced, what it saves is tagged, and `jax.checkpoint` keeps the tags.

What differentiation adds (the cosine of a sine) is no value of the function: no rule can mean it, and it is computed
again from what is there. `jax_remat3` looks into no custom derivative, so that there a derivative that reads its own
result has the equation computed again. Read after `tag`.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.extend.core as jex
import jax.extend.source_info_util as source_info
import numpy as np

from jaxckpt import _compat
from jaxckpt._errors import PolicyError
from jaxckpt.annotate.checkpoint_policy import is_remat3, jax_policy
from jaxckpt.annotate.open_body import AROUND, body_of, graph_of_body, unmarked
from jaxckpt.annotate.tagging import tagged, tags_of
from jaxckpt.ir import Graph, Save
from jaxckpt.ir.scope import path_of_marks
from jaxckpt.policy import ForwardValue, Match, Policy, Resolved, Rule, resolve
from jaxckpt.policy.rule import globs

_NUMBER = re.compile(r"\d+")
_HOLE = object()
_OPAQUE = ("custom_vjp_call", "custom_vjp_call_jaxpr")
"""Primitives whose forward rule no trace shows before differentiation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """How a part is checkpointed.

    Attributes:
      policy: What decides.
      prevent_cse: As `jax.checkpoint` takes it: False is right inside a loop, where XLA merges nothing anyway.
    """

    policy: Policy
    prevent_cse: bool = True

    def __call__(self, call: Callable[..., Any], *args: Any, repeats: str = "") -> Any:
        """Calls a function of pytrees of arrays.

        Args:
          call: The function. Leaves of its results that are no arrays pass through.
          *args: Pytrees; leaves that are no arrays are not traced.
          repeats: A name that the function puts around all it does and that is around this call already.

        Raises:
          PolicyError: A rule of the policy matches nothing in the function.
          UnsupportedDecisionError: It wants what no `jax.checkpoint` can do.
        """
        if saves_all(self.policy):
            return call(*args)
        leaves, tree = jax.tree.flatten(args)
        traced = [i for i, leaf in enumerate(leaves) if is_array(leaf)]
        results: list[Any] = []

        def flat(*arrays: Any) -> list[Any]:
            whole = list(leaves)
            for position, array in zip(traced, arrays, strict=True):
                whole[position] = array
            returned, out_tree = jax.tree.flatten(call(*jax.tree.unflatten(tree, whole)))
            made = [leaf for leaf in returned if isinstance(leaf, jax.Array)]
            results.extend((out_tree, [_HOLE if isinstance(leaf, jax.Array) else leaf for leaf in returned]))
            return made

        arrays = [leaves[position] for position in traced]
        closed = jax.make_jaxpr(flat)(*arrays)
        made = iter(self._checkpointed(closed, repeats)(*arrays))
        out_tree, held = results
        return jax.tree.unflatten(out_tree, [next(made) if leaf is _HOLE else leaf for leaf in held])

    def _checkpointed(self, closed: Any, repeats: str) -> Callable[..., Sequence[Any]]:
        """A traced function with the policy carried out on it."""
        body = body_of(closed, repeats=repeats)
        stack = unmarked(source_info.current_name_stack())
        place = path_of_marks(_compat.name_stack_marks(stack))
        asks_arguments = any(rule.match.boundary is not None for rule in self.policy.rules)
        graph, variables = graph_of_body(body, stack, arguments=asks_arguments)
        resolved, hidden = _resolved(self.policy, graph, place)
        tags = tags_of(resolved, graph, variables)
        call = jex.jaxpr_as_fun(tagged(body, tags, derivatives=not is_remat3()))
        return jax.checkpoint(call, policy=jax_policy(hidden, tags.values()), prevent_cse=self.prevent_cse)


def saves_all(policy: Policy) -> bool:
    """Whether a policy leaves everything to the compiler."""
    rules = all(isinstance(rule.decision, Save) for rule in policy.rules)
    return rules and policy.default == "save" and policy.regions is None


def is_array(leaf: Any) -> bool:
    """Whether a leaf of an argument is traced: arrays of JAX and of NumPy, not Python's numbers."""
    return isinstance(leaf, jax.Array | np.ndarray)


def _resolved(policy: Policy, graph: Graph, place: str) -> tuple[tuple[Resolved, ...], tuple[Rule, ...]]:
    """What is decided about each value; and the rules on names that no trace shows yet."""
    numbers = _NUMBER.findall(place)
    layer = int(numbers[-1]) if numbers else None
    hidden = _hidden(policy, graph)
    excused = frozenset(
        index for index, rule in enumerate(policy.rules) if index in hidden or _is_of_another_layer(rule, layer)
    )
    crossing = frozenset({*_arguments(graph), *graph.outputs})
    try:
        resolved = resolve(policy, graph, crossing=crossing, layer=layer, excused=excused)
    except PolicyError as error:
        error.add_note(f"in the scope {place or 'without a name'}")
        raise
    return resolved, tuple(policy.rules[index] for index in sorted(hidden))


def _hidden(policy: Policy, graph: Graph) -> frozenset[int]:
    """Indices of rules on nothing but a name that nothing here has, where an op may hide it."""
    if not any(op.primitive in _OPAQUE for op in graph.ops):
        return frozenset()
    names = {value.name for value in graph.values}
    return frozenset(
        index
        for index, rule in enumerate(policy.rules)
        if rule.match == Match(name=rule.match.name) and not any(globs(rule.match.name or "", name) for name in names)
    )


def _is_of_another_layer(rule: Rule, layer: int | None) -> bool:
    """Whether a rule is about layers by number, and this one is none of them."""
    match = Match(layers=rule.match.layers, every=rule.match.every)
    if layer is None or match == Match():
        return False
    anything = ForwardValue(
        id=0, scope="", layer=layer, name=None, primitive="", dtype="", size_bytes=0, flops=0, is_residual=True
    )
    return not match.holds(anything)


def _arguments(graph: Graph) -> tuple[int, ...]:
    first = graph.ops[0]
    return first.writes if first.primitive == AROUND and first.writes else ()
