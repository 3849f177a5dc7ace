"""A jaxpr interpreter that runs one operation at a time, so that a rewritten step must give the same bits.

Each operation is compiled and run by itself: XLA cannot fuse it with others, and equal operands give equal bits. The
interpreter enters calls, iterates loops in Python and chooses branches, so that a loop whose body was rewritten is
comparable too. Kernels are compiled as one operation, and so is a `shard_map` with effects or over some of its mesh's
axes. In the body of any other `shard_map` each operation is a `shard_map` of its own; between two of them a value is an
array with one more dimension over the mesh axes over which the value may differ, and a cond is one operation, since
devices may take different branches.

`jax.disable_jit` is not used: under it JAX would trace another step (loops unrolled), for which no plan was made. Nor
is `jaxckpt.trace`: what checks a rewrite should not share its code.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np

from jaxckpt import _compat
from jaxckpt.program.inline import CALLS, CUSTOM_DERIVATIVES, JITS, REMATS, called_jaxpr

_CALLS = JITS | CALLS | REMATS | CUSTOM_DERIVATIVES


def run_one_by_one(closed: jex.ClosedJaxpr | jex.Jaxpr, *flat: Any) -> list[Any]:
    """Runs a closed jaxpr operation by operation on flat arguments; returns flat results.

    Example:
      >>> closed = jax.make_jaxpr(lambda x: jax.nn.softmax(x) + 1)(jnp.zeros(2))
      >>> run_one_by_one(closed, jnp.zeros(2))[0].tolist()
      [1.5, 1.5]
    """
    return _Interpreter().run(closed, flat)


def _done_after(jaxpr: jex.Jaxpr) -> Iterator[list[jex.Var]]:
    """For each equation the variables that no later equation reads, so that their arrays can be freed."""
    last = {v: i for i, eqn in enumerate(jaxpr.eqns) for v in (*eqn.outvars, *eqn.invars) if isinstance(v, jex.Var)}
    last.update({v: len(jaxpr.eqns) for v in jaxpr.outvars if isinstance(v, jex.Var)})
    done: list[list[jex.Var]] = [[] for _ in range(len(jaxpr.eqns) + 1)]
    for variable, position in last.items():
        done[position].append(variable)
    return iter(done[:-1])


def _bind(eqn: jex.JaxprEqn, operands: Sequence[Any]) -> list[Any]:
    return _bound(eqn.primitive, eqn.params, operands)


def _bound(primitive: Any, params: dict[str, Any], operands: Sequence[Any]) -> list[Any]:
    results = primitive.bind(*operands, **primitive.get_bind_params(params))
    return list(results) if primitive.multiple_results else [results]


class _Interpreter:
    """Runs jaxprs over arrays; iterations of a scan are along `axis` of its stacked arrays."""

    axis = 0

    def run(self, closed: jex.ClosedJaxpr | jex.Jaxpr, operands: Sequence[Any]) -> list[Any]:
        """The flat results of a jaxpr."""
        jaxpr = getattr(closed, "jaxpr", closed)
        values: dict[jex.Var, Any] = dict(zip(jaxpr.constvars, getattr(closed, "consts", ()), strict=False))
        values.update(zip(jaxpr.invars, operands, strict=True))
        for eqn, done in zip(jaxpr.eqns, _done_after(jaxpr), strict=True):
            values.update(zip(eqn.outvars, self.equation(eqn, values), strict=True))
            for variable in done:
                values.pop(variable, None)
        return self.read(values, jaxpr.outvars)

    def read(self, values: dict[jex.Var, Any], atoms: Sequence[jax.core.Atom]) -> list[Any]:
        """The arrays of variables and literals."""
        return [values[atom] if isinstance(atom, jex.Var) else self.literal(atom) for atom in atoms]

    def literal(self, literal: jex.Literal) -> Any:
        return literal.val

    def equation(self, eqn: jex.JaxprEqn, values: dict[jex.Var, Any]) -> Sequence[Any]:
        """The results of an equation that is a call, a loop, a branch or one operation."""
        operands = self.read(values, eqn.invars)
        match eqn.primitive.name:
            case name if name in _CALLS:
                return self.run(called_jaxpr(eqn.params), operands)
            case "scan":
                return self._scan(eqn.params, operands)
            case "cond":
                index, *rest = operands
                branches = eqn.params["branches"]
                return self.run(branches[min(max(int(index), 0), len(branches) - 1)], rest)
            case "while":
                return self._while(eqn.params, operands)
        with eqn.ctx.manager:
            return self._operation(eqn, operands)

    def _operation(self, eqn: jex.JaxprEqn, operands: list[Any]) -> Sequence[Any]:
        params = eqn.params
        if eqn.primitive.name != "shard_map":
            return _bind(eqn, operands)
        if not eqn.effects and set(params["newly_manual_axes"]) == set(params["mesh"].axis_names):
            return _ShardMapInterpreter(eqn).results(eqn, operands)
        return jax.jit(lambda *operands: _bind(eqn, operands))(*operands)

    def _while(self, params: dict[str, Any], operands: list[Any]) -> Sequence[Any]:
        of_cond, of_body = params["cond_nconsts"], params["body_nconsts"]
        cond_constants, body_constants = operands[:of_cond], operands[of_cond : of_cond + of_body]
        carry = operands[of_cond + of_body :]
        while bool(self.run(params["cond_jaxpr"], [*cond_constants, *carry])[0]):
            carry = self.run(params["body_jaxpr"], [*body_constants, *carry])
        return carry

    def _scan(self, params: dict[str, Any], operands: list[Any]) -> Sequence[Any]:
        constants, carry, stacked = _compat.scan_operands(params, operands)
        length, width = params["length"], len(carry)
        collected: list[Sequence[Any]] = [()] * length
        for iteration in reversed(range(length)) if params["reverse"] else range(length):
            slices = [each[(slice(None),) * self.axis + (iteration,)] for each in stacked]
            results = self.run(params["jaxpr"], [*constants, *carry, *slices])
            carry, collected[iteration] = results[:width], results[width:]
        body = getattr(params["jaxpr"], "jaxpr", params["jaxpr"])
        empty = [jnp.zeros((0, *v.aval.shape), v.aval.dtype) for v in body.outvars[width:]] if not length else []
        return [*carry, *empty, *(jnp.stack(each, axis=self.axis) for each in zip(*collected, strict=True))]


class _ShardMapInterpreter(_Interpreter):
    """Runs the body of a `shard_map`: each operation on all devices of its mesh."""

    axis = 1

    def __init__(self, eqn: jex.JaxprEqn):
        self._mesh = eqn.params["mesh"]
        self._check_vma = eqn.params["check_vma"]

    def results(self, eqn: jex.JaxprEqn, operands: Sequence[Any]) -> list[Any]:
        """The results of the `shard_map` equation over arrays."""
        jaxpr = eqn.params["jaxpr"]
        arguments, results = self._specs(jaxpr.invars), self._specs(jaxpr.outvars)
        into = self._mapped(_with_dimension, eqn.params["in_specs"], arguments)
        out = self._mapped(_without_dimension, results, eqn.params["out_specs"])
        return list(out(*self.run(jaxpr, into(*operands))))

    def literal(self, literal: jex.Literal) -> Any:
        return self._mapped(lambda: [jnp.asarray(literal.val)[None]], (), self._specs([literal]))()[0]

    def equation(self, eqn: jex.JaxprEqn, values: dict[jex.Var, Any]) -> Sequence[Any]:
        if eqn.primitive.name in _CALLS or eqn.primitive.name == "scan":
            return super().equation(eqn, values)
        variables = [atom for atom in eqn.invars if isinstance(atom, jex.Var)]
        mapped = self._mapped(_Operation.of(eqn), self._specs(variables), self._specs(eqn.outvars))
        return list(mapped(*(values[v] for v in variables)))

    def _specs(self, atoms: Sequence[jax.core.Atom]) -> list[jax.sharding.PartitionSpec]:
        """How values lie between two operations."""
        return [_compat.per_device_spec(each.aval, self._mesh, check_vma=self._check_vma) for each in atoms]

    def _mapped(self, function: Callable[..., Any], in_specs: Sequence[Any], out_specs: Sequence[Any]) -> Any:
        """A function of one device's parts as a compiled one of arrays, kept for the next operation that is equal."""
        of = function, self._mesh, self._check_vma, tuple(in_specs), tuple(out_specs)
        try:
            hash(of)
        except TypeError:  # a parameter that is a list or an array
            return _compiled_over_mesh.__wrapped__(*of)
        return _compiled_over_mesh(*of)


@functools.lru_cache(maxsize=512)
def _compiled_over_mesh(
    function: Callable[..., Any], mesh: Any, check_vma: bool, in_specs: tuple[Any, ...], out_specs: tuple[Any, ...]
) -> Any:
    """A function of one device's parts as a compiled one of arrays.

    What jax keeps of operations that it runs, it keeps here by the function: a new one for each equation would compile
    every iteration of a loop, and of two programs that are compared each operation twice.
    """
    return jax.jit(
        jax.shard_map(
            lambda *parts: tuple(function(*parts)),
            mesh=mesh,
            in_specs=in_specs,
            out_specs=out_specs,
            check_vma=check_vma,
        )
    )


def _with_dimension(*parts: Any) -> list[Any]:
    return [part[None] for part in parts]


def _without_dimension(*parts: Any) -> list[Any]:
    return [part[0] for part in parts]


@dataclass(frozen=True, slots=True)
class _Literal:
    """A number in an equation, equal to another one of the same type and bits: 0.0 is not -0.0, nor 1 True."""

    bits: tuple[Any, ...]
    value: Any = field(compare=False)

    @classmethod
    def of(cls, literal: jex.Literal) -> "_Literal":
        array = np.asarray(literal.val)
        return cls((type(literal.val), literal.aval, array.dtype, array.tobytes()), literal.val)


@dataclass(frozen=True, slots=True)
class _Operation:
    """An equation of a body as a function of what its variables are on one device, with the dimension over the mesh."""

    primitive: Any
    params: tuple[tuple[str, Any], ...]
    operands: tuple[_Literal | None, ...]

    @classmethod
    def of(cls, eqn: jex.JaxprEqn) -> "_Operation":
        operands = (None if isinstance(atom, jex.Var) else _Literal.of(atom) for atom in eqn.invars)
        return cls(eqn.primitive, tuple(sorted(eqn.params.items())), tuple(operands))

    def __call__(self, *parts: Any) -> list[Any]:
        given = iter(parts)
        operands = [next(given)[0] if each is None else each.value for each in self.operands]
        return [result[None] for result in _bound(self.primitive, dict(self.params), operands)]
