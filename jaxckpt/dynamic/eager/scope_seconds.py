"""How long each scope of a step takes, forward and backward: its ops are run one by one, each to its end, and timed.

A compiled step has no borders between its parts that a clock could see; run op by op it has. What is timed is not the
compiled step: nothing is fused, nothing overlaps, and the way through Python is counted with each op. So the seconds
say where the work is, in the shape in which DeepSpeed's `profile` says it, and not how long the step takes.

Read after `program`.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jaxckpt._step import Step
from jaxckpt._units import format_seconds
from jaxckpt.calling import Calling
from jaxckpt.dynamic.eager.operation import Operations
from jaxckpt.dynamic.eager.program import Prepared, prepare
from jaxckpt.dynamic.program import Release, RunCall
from jaxckpt.ir import Phase
from jaxckpt.ir.scope import scope_at_depth
from jaxckpt.trace import trace_call


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeSeconds:
    """Seconds of one scope.

    Attributes:
      scope: The outermost names of its ops; "" for ops without a scope.
      forward_s: Of its forward ops, one by one.
      backward_s: Of its backward ops and of what they compute again.
      update_s: Of the optimiser's.
      ops: How many ran.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jaxckpt import dynamic
      >>> def loss(w, x):
      ...     with jax.named_scope("head"):
      ...         return jnp.tanh(x @ w).sum()
      >>> (row,) = dynamic.timed_scopes(jax.grad(loss), jnp.eye(4), jnp.ones((2, 4)))
      >>> row.scope, row.forward_s > 0, row.backward_s > 0, row.update_s
      ('head', True, True, 0.0)
    """

    scope: str
    forward_s: float
    backward_s: float
    update_s: float
    ops: int

    def __str__(self) -> str:
        told = f"forward {format_seconds(self.forward_s)}, backward {format_seconds(self.backward_s)}"
        return f"{self.scope or '/'}: {told}" + (f", update {format_seconds(self.update_s)}" if self.update_s else "")


def timed_scopes(
    step: Callable[..., Any] | Step, *args: Any, depth: int = 1, static_argnums: int | Sequence[int] = ()
) -> tuple[ScopeSeconds, ...]:
    """Times the scopes of a step by running its ops one by one on the default device.

    Args:
      step: Loss, gradient and, if there is one, the update, as written or planned; plain or jitted.
      *args: Arrays. Each op without effects runs twice, and the second run counts; nothing is donated.
      depth: The number of outer names of a scope's path that are one row.
      static_argnums: Positions that are not traced.

    Returns:
      One row for each scope, in the order of execution. Seconds are those of single ops, not of the compiled step.

    Raises:
      ArgumentError: An argument is no array.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> def loss(w, x):
      ...     with jax.named_scope("block_0"):
      ...         x = jnp.tanh(x @ w)
      ...     with jax.named_scope("block_1"):
      ...         return jnp.tanh(x @ w).sum()
      >>> rows = timed_scopes(jax.grad(loss), jnp.eye(4), jnp.ones((2, 4)))
      >>> [row.scope for row in rows if row.forward_s and row.backward_s]
      ['block_0', 'block_1']
    """
    given = Step.of(step, args, static_argnums=static_argnums)
    with Calling(given.function, static_argnums=given.static_argnums).bind(given.args, given.kwargs) as call:
        prepared = prepare(trace_call(call, call.trace(), eager=True))
        arrays = prepared.arrays(call.leaves, called="timed_scopes")
    seconds: dict[str, dict[Phase, float]] = {}
    ops = Counter[str]()
    for op, op_s in zip(prepared.traced.graph.ops, _run(prepared, arrays), strict=True):
        scope = scope_at_depth(op.scope, depth)
        seconds.setdefault(scope, dict.fromkeys(Phase, 0.0))[op.phase] += op_s
        ops[scope] += 1
    return tuple(
        ScopeSeconds(
            scope=scope,
            forward_s=by_phase[Phase.FORWARD],
            backward_s=by_phase[Phase.BACKWARD],
            update_s=by_phase[Phase.UPDATE],
            ops=ops[scope],
        )
        for scope, by_phase in seconds.items()
    )


def _run(prepared: Prepared, arrays: dict[int, Any]) -> Iterator[float]:
    """Seconds of each op in order; what nobody reads any more is let go."""
    running = Operations()
    for statement in prepared.program.statements:
        match statement:
            case RunCall(call):
                operation = prepared.operations[call]
                operands = operation.operands_in(arrays)
                results, seconds = running.run(operation, operands)
                if not prepared.program.calls[call].once:
                    results, seconds = running.run(operation, operands)
                arrays.update(zip(operation.writes, results, strict=True))
                yield seconds
            case Release(tensor):
                arrays.pop(tensor, None)
