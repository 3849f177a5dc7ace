"""A jaxpr interpreter for the body of a `shard_map`: one operation at a time, each on all devices of its mesh.

Each operation is a `shard_map` of its own. Between two operations a value is an array with one more dimension over the
mesh axes over which the value may differ. Calls are entered and loops iterate in Python, as outside of a body; a cond
is one operation, since devices may take different branches.

Read after `interpret`; `run_by_device` is called there.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp

from jaxckpt import _compat


def run_by_device(eqn: jex.JaxprEqn, operands: Sequence[Any], calls: frozenset[str]) -> list[Any]:
    """Runs a `shard_map` equation over arrays; primitives in `calls` are entered."""
    interpreter = _ShardMapInterpreter(eqn, calls)
    jaxpr = eqn.params["jaxpr"]
    arguments = [interpreter.spec(v.aval) for v in jaxpr.invars]
    into = interpreter.mapped(lambda *parts: [part[None] for part in parts], eqn.params["in_specs"], arguments)
    results = [interpreter.spec(atom.aval) for atom in jaxpr.outvars]
    out = interpreter.mapped(lambda *parts: [part[0] for part in parts], results, eqn.params["out_specs"])
    return list(out(*interpreter.run(jaxpr, (), into(*operands))))


class _ShardMapInterpreter:
    def __init__(self, eqn: jex.JaxprEqn, calls: frozenset[str]):
        self._mesh = eqn.params["mesh"]
        self._check_vma = eqn.params["check_vma"]
        self._calls = calls

    def spec(self, aval: Any) -> Any:
        """How a value lies between two operations."""
        return _compat.per_device_spec(aval, self._mesh, check_vma=self._check_vma)

    def mapped(self, function: Callable[..., Any], in_specs: Sequence[Any], out_specs: Sequence[Any]) -> Any:
        """A function of one device's parts as a compiled one of arrays."""
        return jax.jit(
            jax.shard_map(
                lambda *parts: tuple(function(*parts)),
                mesh=self._mesh,
                in_specs=tuple(in_specs),
                out_specs=tuple(out_specs),
                check_vma=self._check_vma,
            )
        )

    def run(self, closed: jex.ClosedJaxpr | jex.Jaxpr, constants: Sequence[Any], operands: Sequence[Any]) -> list[Any]:
        """The results of a jaxpr, of all devices."""
        jaxpr = getattr(closed, "jaxpr", closed)
        values: dict[jex.Var, Any] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*constants, *operands), strict=True))
        for eqn in jaxpr.eqns:
            values.update(zip(eqn.outvars, self._eqn(eqn, values), strict=True))
        return [self._value(values, atom) for atom in jaxpr.outvars]

    def _value(self, values: dict[jex.Var, Any], atom: jex.Var | jex.Literal) -> Any:
        if isinstance(atom, jex.Var):
            return values[atom]
        return self.mapped(lambda: [jnp.asarray(atom.val)[None]], (), [self.spec(atom.aval)])()[0]

    def _eqn(self, eqn: jex.JaxprEqn, values: dict[jex.Var, Any]) -> Sequence[Any]:
        name, params = eqn.primitive.name, eqn.params
        if name in self._calls:
            body = params["jaxpr"] if "jaxpr" in params else params["call_jaxpr"]
            return self.run(body, getattr(body, "consts", ()), [self._value(values, atom) for atom in eqn.invars])
        if name == "scan":
            return self._scan(params, [self._value(values, atom) for atom in eqn.invars])
        return self._operation(eqn, values)

    def _operation(self, eqn: jex.JaxprEqn, values: dict[jex.Var, Any]) -> list[Any]:
        """The results of an operation that is not entered, by a `shard_map` of its own."""
        variables = [atom for atom in eqn.invars if isinstance(atom, jex.Var)]
        bound = eqn.primitive.get_bind_params(eqn.params)

        def operation(*parts: Any) -> list[Any]:
            given = iter(parts)
            operands = [next(given)[0] if isinstance(atom, jex.Var) else atom.val for atom in eqn.invars]
            results = eqn.primitive.bind(*operands, **bound)
            return [result[None] for result in (results if eqn.primitive.multiple_results else [results])]

        specs = [self.spec(v.aval) for v in variables], [self.spec(v.aval) for v in eqn.outvars]
        return list(self.mapped(operation, *specs)(*(values[v] for v in variables)))

    def _scan(self, params: dict[str, Any], operands: list[Any]) -> Sequence[Any]:
        constants, carry, stacked = _compat.scan_operands(params, operands)
        length, width = params["length"], len(carry)
        collected: list[Sequence[Any]] = [()] * length
        body = params["jaxpr"]
        for iteration in reversed(range(length)) if params["reverse"] else range(length):
            slices = [each[:, iteration] for each in stacked]
            results = self.run(body, getattr(body, "consts", ()), [*constants, *carry, *slices])
            carry, collected[iteration] = results[:width], results[width:]
        return [*carry, *(jnp.stack(each, axis=1) for each in zip(*collected, strict=True))]
