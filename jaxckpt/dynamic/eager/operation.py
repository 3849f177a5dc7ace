"""One op of a step over real arrays: JAX's own primitive, bound outside of any trace; and what it costs.

JAX compiles a primitive once for each kind of operands and keeps it; so does `Operations` where JAX has no eager form:
where an operand's memory is given to the result, and for `shard_map`.

The first run of a kind of operation compiles it, so it is the second one that is measured. The least that was measured
counts, for what else the machine does only adds to it. Below `_SHORTEST_S` dispatch dominates a measurement, so that
the price is the smaller of the measurement and the model.
"""

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax

from jaxckpt.cost.rates import Rates
from jaxckpt.dynamic.from_graph import eager_seconds
from jaxckpt.ir import Graph

VIEWS = frozenset({"name", "random_wrap", "random_unwrap"})
"""Primitives whose result shares its operand's memory when JAX runs them eagerly."""
_JIT_ONLY = frozenset({"shard_map"})
"""Primitives that cannot be bound outside of `jax.jit`."""
_SHORTEST_S = 2e-4
"""An operation that takes less is mostly dispatched, not worked on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """An equation, with the tensors of the program that it reads and writes."""

    eqn: Any = field(repr=False)
    operands: tuple["int | Literal", ...]  # for each operand a tensor's id, or the literal itself
    writes: tuple[int, ...]
    key: str  # equal for operations that take the same time: primitive, parameters, shapes

    @property
    def is_view(self) -> bool:
        """Primitives whose result shares the operand's memory."""
        return self.eqn.primitive.name in VIEWS

    def operands_in(self, arrays: Mapping[int, Any]) -> list[Any]:
        """The operands, of which `arrays` holds the tensors."""
        return [each.value if isinstance(each, Literal) else arrays[each] for each in self.operands]


@dataclass(frozen=True, slots=True)
class Literal:
    """An operand that stands in the step itself."""

    value: Any = field(repr=False)
    dtype: Any = None


class Operations:
    """Runs operations, one at a time, each to its end."""

    def __init__(self) -> None:
        self._jitted: dict[Hashable, Callable[..., Any]] = {}
        """By primitive, parameters and donated operands."""

    def run(
        self, operation: Operation, operands: Sequence[Any], *, donated: tuple[int, ...] = ()
    ) -> tuple[list[Any], float]:
        """Runs an operation. The result takes over the memory of operands at `donated` positions, which are then gone.

        Returns:
          Its results, which share no memory with the operands unless it is a view; and seconds.
        """
        bind = self._bind(operation, donated)
        begin = time.perf_counter()
        with operation.eqn.ctx.manager:
            results = bind(*operands)
        results = list(results) if operation.eqn.primitive.multiple_results else [results]
        if not operation.is_view:
            results = [_apart(result, operands) for result in results]
        jax.block_until_ready(results)
        return results, time.perf_counter() - begin

    def _bind(self, operation: Operation, donated: tuple[int, ...]) -> Callable[..., Any]:
        primitive = operation.eqn.primitive
        params = primitive.get_bind_params(operation.eqn.params)

        def bind(*operands: Any) -> Any:
            results = primitive.bind(*operands, **params)
            return list(results) if primitive.multiple_results else results  # a jit takes no other kind of sequence

        if not donated and primitive.name not in _JIT_ONLY:
            return bind
        key = primitive, tuple(sorted(operation.eqn.params.items())), donated
        if key not in self._jitted:
            self._jitted[key] = jax.jit(bind, donate_argnums=donated)
        return self._jitted[key]


def _apart(result: Any, operands: Sequence[Any]) -> Any:
    """The result, copied where JAX has handed an operand on."""
    return result.copy() if any(result is operand for operand in operands) else result


class OpCosts:
    """Prices by kind of operation; kept from step to step."""

    def __init__(self, rates: Rates):
        self._rates = rates
        self._measured_s: dict[str, float] = {}
        self._seen: set[str] = set()

    def guesses(self, graph: Graph, keys: Sequence[str], views: frozenset[str]) -> list[float]:
        """For each op what was measured of its kind, else what the model says."""
        modelled_s = eager_seconds(graph, self._rates, views=views)
        return [self._measured_s.get(key, price) for key, price in zip(keys, modelled_s, strict=True)]

    def record(self, key: str, seconds: float, *, otherwise: float) -> float:
        """Price of a kind of operation after a run of these seconds; `otherwise` after the first, which compiles."""
        if key not in self._seen:
            self._seen.add(key)
            return otherwise
        if seconds < _SHORTEST_S:
            return min(otherwise, seconds)
        self._measured_s[key] = min(seconds, self._measured_s.get(key, seconds))
        return self._measured_s[key]
