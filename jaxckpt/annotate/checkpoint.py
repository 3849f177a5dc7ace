"""A function whose residuals a policy decides about, by `jax.checkpoint` with a policy of names.

1. The function is traced, and the policy is resolved for the trace.
2. Values that the policy saves are tagged.
3. `jax.checkpoint` saves the tagged values and recomputes all others.

Values that differentiation adds (the cosine of a sine) are no values of the function: no rule matches them, and they
are recomputed. `jax_remat3` does not look into custom derivatives; there an equation whose derivative reads its own
result is recomputed. Read after `tagging`.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.extend.core as jex
import jax.extend.source_info_util as source_info
import numpy as np
from jax.typing import ArrayLike

from jaxckpt import _compat
from jaxckpt._errors import PolicyError
from jaxckpt.annotate.jax_policy import is_remat3, tag_policy
from jaxckpt.annotate.open_body import AROUND, body_of, graph_of_body, unmarked
from jaxckpt.annotate.tagging import tagged, tags_of
from jaxckpt.calling.calling import MARKS_ARE_READ
from jaxckpt.calling.split import HOLE, Static
from jaxckpt.ir import Graph, Save
from jaxckpt.ir.scope import path_of_marks
from jaxckpt.policy import ForwardValue, Match, Policy, Resolved, Rule, resolve
from jaxckpt.policy.rule import globs

_NUMBER = re.compile(r"(?:^|[/_.\[])(\d+)(?=$|[/.\]])")
"""A number that counts something in a place: "block_3", "layers/3"; the 2 of "GPT2" does not."""
_OPAQUE = ("custom_vjp_call", "custom_vjp_call_jaxpr")
"""Primitives whose forward rule is traced in differentiation alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint of a part, by a policy.

    `prevent_cse` False is right inside a loop, where XLA merges nothing anyway.
    """

    policy: Policy
    prevent_cse: bool = True

    def __call__(self, call: Callable[..., Any], *args: Any, repeats: str = "") -> Any:
        """Calls a function of pytrees; leaves that are no arrays are not traced, and pass through in results.

        `repeats` is a name that the function puts around its equations and that is around this call already.
        """
        arrays, static = arrays_and_rest(args)
        returned: list[Static] = []

        def flat(*arrays: ArrayLike) -> list[jax.Array]:
            results, rest = arrays_and_rest(
                call(*static.filled(arrays)), is_taken=lambda leaf: isinstance(leaf, jax.Array)
            )
            returned.append(rest)
            return results

        before = MARKS_ARE_READ.set(True)  # of scopes inside this one
        try:
            closed = jax.make_jaxpr(flat)(*arrays)
        finally:
            MARKS_ARE_READ.reset(before)
        (rest,) = returned
        return rest.filled(self._checkpointed(closed, repeats)(*arrays))

    def _checkpointed(self, closed: jex.ClosedJaxpr, repeats: str) -> Callable[..., Sequence[Any]]:
        """A traced function under `jax.checkpoint` with the policy."""
        body = body_of(closed, repeats=repeats)
        stack = unmarked(source_info.current_name_stack())
        place = path_of_marks(_compat.name_stack_marks(stack))
        asks_arguments = any(rule.match.boundary is not None for rule in self.policy.rules)
        graph, variables = graph_of_body(body, stack, arguments=asks_arguments)
        resolved, hidden = _resolved(self.policy, graph, place)
        tags = tags_of(resolved, graph, variables)
        call = jex.jaxpr_as_fun(tagged(body, tags, derivatives=not is_remat3()))
        return jax.checkpoint(call, policy=tag_policy(hidden, tags.values()), prevent_cse=self.prevent_cse)


def saves_all(policy: Policy) -> bool:
    """True if a policy saves everything, which leaves all to the compiler."""
    rules = all(isinstance(rule.decision, Save) for rule in policy.rules)
    return rules and policy.default == "save" and policy.regions is None


def is_array(leaf: object) -> bool:
    """True if a leaf of an argument is traced: arrays of JAX and of NumPy, not Python's numbers."""
    return isinstance(leaf, jax.Array | np.ndarray)


def arrays_and_rest(
    tree: Any, *, is_taken: Callable[[Any], bool] = is_array, is_leaf: Callable[[Any], bool] | None = None
) -> tuple[list[Any], Static]:
    """The arrays of a pytree, or the leaves that are taken for such, and the rest, which can be filled again."""
    leaves, structure = jax.tree.flatten(tree, is_leaf=is_leaf)
    rest = Static(structure, tuple(HOLE if is_taken(leaf) else leaf for leaf in leaves))
    return [leaf for leaf in leaves if is_taken(leaf)], rest


def _resolved(policy: Policy, graph: Graph, place: str) -> tuple[tuple[Resolved, ...], tuple[Rule, ...]]:
    """The decision about each value, and the rules on names that only differentiation shows."""
    layer = _layer(policy, place)
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


def _layer(policy: Policy, place: str) -> int | None:
    """The number of the layer that a scope is in, or is; None where its place has no number."""
    numbers = list(dict.fromkeys(map(int, _NUMBER.findall(place))))
    if len(numbers) > 1 and any(_selects_layers(rule) for rule in policy.rules):
        raise PolicyError(
            f'policy "{policy.name}" selects layers by number, and the scope {place} has several numbers.',
            got=f"the numbers {', '.join(map(str, numbers))}",
            needed="a place with one number, or rules on scopes",
            advice='scope = "*block_2/*" in place of layers = "2"; or jaxckpt.apply, which looks at the whole model',
        )
    return numbers[0] if numbers else None


def _selects_layers(rule: Rule) -> bool:
    return _of_layers(rule) != Match()


def _of_layers(rule: Rule) -> Match:
    """The keys of a rule that select layers by number."""
    return Match(layers=rule.match.layers, every=rule.match.every)


def _hidden(policy: Policy, graph: Graph) -> frozenset[int]:
    """Indices of rules on a name alone that no value here has, where an op may hide the name."""
    if not any(op.primitive in _OPAQUE for op in graph.ops):
        return frozenset()
    names = {value.name for value in graph.values}
    return frozenset(
        index
        for index, rule in enumerate(policy.rules)
        if rule.match == Match(name=rule.match.name) and not any(globs(rule.match.name or "", name) for name in names)
    )


def _is_of_another_layer(rule: Rule, layer: int | None) -> bool:
    """True if a rule selects layers by number, and this layer is none of them."""
    return layer is not None and _selects_layers(rule) and not _of_layers(rule).holds(ForwardValue(layer=layer))


def _arguments(graph: Graph) -> tuple[int, ...]:
    first = graph.ops[0]
    return first.writes if first.primitive == AROUND and first.writes else ()
