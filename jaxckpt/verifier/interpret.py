"""A jaxpr interpreter that runs one operation at a time, so that a rewritten step must give the same bits.

Each operation is compiled and run by itself: XLA cannot fuse it with others, and equal operands give equal bits. The
interpreter enters calls, iterates loops in Python and chooses branches, so that a loop whose body was rewritten is
comparable too, and so is the body of a `shard_map` (`interpret_shard_map`). Kernels are compiled as one operation, and
so is a `shard_map` with effects or over some of its mesh's axes.

`jax.disable_jit` is not used: under it JAX would trace another step (loops unrolled), for which no plan was made. Nor
is `jaxckpt.trace`: what checks a rewrite should not share its code.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp

from jaxckpt import _compat
from jaxckpt.program.inline import CALLS, CUSTOM_DERIVATIVES, JITS, REMATS, called_jaxpr
from jaxckpt.verifier.interpret_shard_map import run_by_device

_CALLS = JITS | CALLS | REMATS | CUSTOM_DERIVATIVES


def run_one_by_one(closed: jex.ClosedJaxpr | jex.Jaxpr, *flat: Any) -> list[Any]:
    """Runs a closed jaxpr operation by operation on flat arguments; returns flat results.

    Example:
      >>> closed = jax.make_jaxpr(lambda x: jax.nn.softmax(x) + 1)(jnp.zeros(2))
      >>> run_one_by_one(closed, jnp.zeros(2))[0].tolist()
      [1.5, 1.5]
    """
    jaxpr = getattr(closed, "jaxpr", closed)
    values: dict[jex.Var, Any] = dict(zip(jaxpr.constvars, getattr(closed, "consts", ()), strict=False))
    values.update(zip(jaxpr.invars, flat, strict=True))
    for eqn, done in zip(jaxpr.eqns, _done_after(jaxpr), strict=True):
        results = _run(eqn, [_read(values, atom) for atom in eqn.invars])
        values.update(zip(eqn.outvars, results, strict=True))
        for variable in done:
            values.pop(variable, None)
    return [_read(values, atom) for atom in jaxpr.outvars]


def _read(values: dict[jex.Var, Any], atom: jex.Var | jex.Literal) -> Any:
    return values[atom] if isinstance(atom, jex.Var) else atom.val


def _done_after(jaxpr: jex.Jaxpr) -> Iterator[list[jex.Var]]:
    """For each equation the variables that no later equation reads, so that their arrays can be freed."""
    last = {v: i for i, eqn in enumerate(jaxpr.eqns) for v in (*eqn.outvars, *eqn.invars) if isinstance(v, jex.Var)}
    last.update({v: len(jaxpr.eqns) for v in jaxpr.outvars if isinstance(v, jex.Var)})
    done: list[list[jex.Var]] = [[] for _ in range(len(jaxpr.eqns) + 1)]
    for variable, position in last.items():
        done[position].append(variable)
    return iter(done[:-1])


def _run(eqn: jex.JaxprEqn, operands: list[Any]) -> Sequence[Any]:
    name = eqn.primitive.name
    if name in _CALLS:
        return run_one_by_one(called_jaxpr(eqn.params), *operands)
    if name in _LOOPS:
        return _LOOPS[name](eqn.params, operands)
    with eqn.ctx.manager:
        return run_by_device(eqn, operands, _CALLS) if _runs_by_device(eqn) else _run_compiled(eqn, operands)


def _runs_by_device(eqn: jex.JaxprEqn) -> bool:
    if eqn.primitive.name != "shard_map" or eqn.effects:
        return False
    return set(eqn.params["newly_manual_axes"]) == set(eqn.params["mesh"].axis_names)


def _run_compiled(eqn: jex.JaxprEqn, operands: list[Any]) -> Sequence[Any]:
    params = eqn.primitive.get_bind_params(eqn.params)

    def bind(*operands: Any) -> list[Any]:
        results = eqn.primitive.bind(*operands, **params)
        return list(results) if eqn.primitive.multiple_results else [results]

    return (jax.jit(bind) if eqn.primitive.name == "shard_map" else bind)(*operands)


def _cond(params: dict[str, Any], operands: list[Any]) -> Sequence[Any]:
    index, *rest = operands
    branches = params["branches"]
    return run_one_by_one(branches[min(max(int(index), 0), len(branches) - 1)], *rest)


def _while(params: dict[str, Any], operands: list[Any]) -> Sequence[Any]:
    of_cond, of_body = params["cond_nconsts"], params["body_nconsts"]
    cond_constants, body_constants = operands[:of_cond], operands[of_cond : of_cond + of_body]
    carry = operands[of_cond + of_body :]
    while bool(run_one_by_one(params["cond_jaxpr"], *cond_constants, *carry)[0]):
        carry = run_one_by_one(params["body_jaxpr"], *body_constants, *carry)
    return carry


def _scan(params: dict[str, Any], operands: list[Any]) -> Sequence[Any]:
    constants, carry, stacked = _compat.scan_operands(params, operands)
    length, width = params["length"], len(carry)
    collected: list[Sequence[Any]] = [()] * length
    for iteration in reversed(range(length)) if params["reverse"] else range(length):
        results = run_one_by_one(params["jaxpr"], *constants, *carry, *(each[iteration] for each in stacked))
        carry, collected[iteration] = results[:width], results[width:]
    body = getattr(params["jaxpr"], "jaxpr", params["jaxpr"])
    empty = [jnp.zeros((0, *v.aval.shape), v.aval.dtype) for v in body.outvars[width:]] if not length else []
    return [*carry, *(map(jnp.stack, zip(*collected, strict=True)) if length else empty)]


_LOOPS: dict[str, Callable[[dict[str, Any], list[Any]], Sequence[Any]]] = {
    "cond": _cond,
    "while": _while,
    "scan": _scan,
}
