"""Where everything lies under each rule of eviction, on one step: what can be watched side by side.

Read after `unrolled_training`.
"""

from collections.abc import Callable, Sequence
from typing import Any

from jaxckpt._step import Step
from jaxckpt.dynamic import AddressMap, address_map, live_bytes
from jaxckpt.dynamic.compare.unrolled_training import EVICTORS, memory_of, rule_as_run, trained_step
from jaxckpt.machine import Target


def address_maps(
    step: Callable[..., Any] | Step,
    *args: Any,
    ratio: float,
    evictors: Sequence[str] = EVICTORS,
    target: Target | str = "h200",
    basis: str = "kernels",
    steps: int = 3,
    limit: float = 10,
    donate_argnums: int | Sequence[int] = (),
    static_argnums: int | Sequence[int] = (),
) -> dict[str, AddressMap]:
    """Simulates rules of eviction on a step under one budget, and says where everything lay.

    Arguments and errors are those of `compare_evictors`; `ratio` is the budget, as a share of the memory without one.

    Returns:
      A map a rule, by its name.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> step = jax.grad(lambda w, x: jnp.tanh(jnp.tanh(jnp.tanh(x @ w) @ w) @ w).sum())
      >>> maps = address_maps(step, jnp.eye(8), jnp.ones((64, 8)), ratio=0.9)
      >>> {name: found.simulation.ok for name, found in maps.items()}
      {'dtr': True, 'dte': True, 'coop': True}
    """
    rules = {name: rule_as_run(name) for name in evictors}
    called = Step.of(step, args, donate_argnums=donate_argnums, static_argnums=static_argnums)
    trained = trained_step(called, target=target, basis=basis, steps=steps)
    budget = max(1, int(ratio * live_bytes(trained.program)))
    return {
        name: address_map(trained.program, budget=budget, evictor=rule, memory=memory_of(rule), limit=limit)
        for name, rule in rules.items()
    }
