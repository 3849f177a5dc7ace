"""Those parameters of an equation that decide what it computes, as a text that is the same in every process.

Numbers, shapes, dtypes and dimension numbers are written out; a body becomes a hash of its own equations; functions,
meshes' devices and objects with addresses are left to the name of their type. Names that people give
(`name=`) decide nothing and are left out.
"""

import dataclasses
import enum
import hashlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.extend.core as jex
import numpy as np

from jaxckpt.program.flat_program import JAXPRS
from jaxckpt.program.inline import constants_of, open_jaxpr

_NAMES = frozenset({"name", "debug_info", "debug", "name_and_src_info", "ctx_mesh", "context_mesh"})


class Details:
    """Writes details, and remembers those of bodies and parameters that it has seen.

    Not for longer than the equations live: what it remembers goes by identity.
    """

    def __init__(self) -> None:
        self._bodies: dict[int, str] = {}
        self._written: dict[int, tuple[Any, str]] = {}

    def of(self, eqn: Any) -> str:
        """The detail of one equation.

        Args:
          eqn: A JAX equation.

        Returns:
          "parameter=value" joined by blanks, sorted; then "@" and the positions of literal operands. Parameters
          that are absent (None) or empty are left out.
        """
        parts = [
            f"{name}={text}"
            for name, param in sorted(eqn.params.items())
            if name not in _NAMES and not _is_left_open(eqn, param) and (text := self._text(param))
        ]
        literals = [str(i) for i, atom in enumerate(eqn.invars) if not isinstance(atom, jex.Var)]
        return " ".join(parts + (["@" + ",".join(literals)] if literals else []))

    def _text(self, param: Any) -> str:
        if param is None or isinstance(param, (bool, int, float, complex, str)):
            return "" if param is None else repr(param)
        if id(param) not in self._written:
            self._written[id(param)] = (param, self._text_of_object(param))
        return self._written[id(param)][1]

    def _text_of_object(self, param: Any) -> str:
        if isinstance(param, enum.Enum):
            return param.name
        if isinstance(param, np.dtype):
            return str(param)
        if isinstance(param, type):
            return param.__name__
        if isinstance(param, np.generic):
            return repr(param.item())
        if isinstance(param, JAXPRS):
            return self.of_body(param)
        if isinstance(param, jax.sharding.Sharding):
            return str(getattr(param, "spec", type(param).__name__))
        if isinstance(param, (jax.sharding.Mesh, jax.sharding.AbstractMesh)):
            return str(dict(param.shape))
        return self._text_of_structure(param)

    def _text_of_structure(self, param: Any) -> str:
        if isinstance(param, (tuple, list)):
            return f"({','.join(map(self._text, param))})"
        if isinstance(param, (set, frozenset)):
            return f"{{{','.join(sorted(map(self._text, param)))}}}"
        if isinstance(param, dict):
            items = sorted((str(key), self._text(value)) for key, value in param.items())
            return f"{{{','.join(f'{key}:{text}' for key, text in items)}}}"
        if hasattr(param, "shape") and hasattr(param, "dtype"):
            return f"{param.dtype}{list(param.shape)}"
        if dataclasses.is_dataclass(param):
            fields = (getattr(param, field.name) for field in dataclasses.fields(param))
            return f"{type(param).__name__}({','.join(map(self._text, fields))})"
        return type(param).__name__

    def of_body(self, jaxpr: Any) -> str:
        """A hash of the structure of a jaxpr: primitives, connections, types, details."""
        if id(jaxpr) not in self._bodies:
            digest = hashlib.sha256()
            for line in self._body_lines(jaxpr):
                digest.update(line.encode())
            self._bodies[id(jaxpr)] = digest.hexdigest()[:12]
        return self._bodies[id(jaxpr)]

    def _body_lines(self, closed: Any) -> Iterator[str]:
        jaxpr = open_jaxpr(closed)
        numbers: dict[Any, int] = {}
        for variable in (*jaxpr.constvars, *jaxpr.invars):
            numbers[variable] = len(numbers)
            yield f"{numbers[variable]}:{variable.aval}\n"
        yield f"{len(constants_of(closed))}\n"
        for eqn in jaxpr.eqns:
            reads = [numbers[v] for v in eqn.invars if isinstance(v, jex.Var)]
            for variable in eqn.outvars:
                numbers[variable] = len(numbers)
            types = [str(v.aval) for v in eqn.outvars]
            yield f"{eqn.primitive.name}{reads}{types}{self.of(eqn)}\n"
        yield str([numbers[v] if isinstance(v, jex.Var) else "literal" for v in jaxpr.outvars])


def _is_left_open(eqn: Any, param: Any) -> bool:
    """Whether a parameter is the empty sharding that JAX gives new arrays where an automatic mesh is in sight.

    The same step has none where it is traced without one. A constraint is another matter: to be whole is what it says.
    """
    if not isinstance(param, jax.sharding.NamedSharding) or eqn.primitive.name == "sharding_constraint":
        return False
    automatic = all(kind == jax.sharding.AxisType.Auto for kind in param.mesh.axis_types)
    return automatic and not any(param.spec)
