"""Where everything lies under each rule of eviction, on one step: what can be watched side by side.

Read after `unrolled_training`.
"""

from collections.abc import Callable, Sequence
from typing import Any

from jaxckpt.dynamic import AddressMap, address_map, live_bytes
from jaxckpt.dynamic.compare.unrolled_training import EVICTORS, memory_of, rule_as_run, trained_step
from jaxckpt.machine import Target


def address_maps(
    step: Callable[..., Any],
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

    Args:
      step: A function, plain or jitted; it is traced, not run.
      *args: Its arguments, or descriptions of them.
      ratio: The budget, as a share of the memory without one.
      evictors: As `compare_evictors`'s, and so are all others.
      target: Whose seconds count.
      basis: "kernels" or "eager".
      steps: Training steps.
      limit: A run is given up when recomputations are this many times the step.
      donate_argnums: As `jaxckpt.plan`.
      static_argnums: As `jaxckpt.plan`.

    Returns:
      A map a rule, by its name.

    Raises:
      ComparisonError: There is no such basis.
      UnknownEvictorError: There is no such rule.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> step = jax.grad(lambda w, x: jnp.tanh(jnp.tanh(jnp.tanh(x @ w) @ w) @ w).sum())
      >>> maps = address_maps(step, jnp.eye(8), jnp.ones((64, 8)), ratio=0.9)
      >>> {name: found.simulation.ok for name, found in maps.items()}
      {'dtr': True, 'dte': True, 'coop': True}
    """
    rules = {name: rule_as_run(name) for name in evictors}
    trained = trained_step(
        step,
        args,
        target=target,
        basis=basis,
        steps=steps,
        donate_argnums=donate_argnums,
        static_argnums=static_argnums,
    )
    budget = max(1, int(ratio * live_bytes(trained.program)))
    return {
        name: address_map(trained.program, budget=budget, evictor=rule, memory=memory_of(rule), limit=limit)
        for name, rule in rules.items()
    }
