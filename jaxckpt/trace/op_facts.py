"""Facts of an equation that its graph op carries: detail, traits, placement, source location.

Each class remembers what it has seen by identity, so it must not outlive the equations.
"""

import dataclasses
import enum
import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import jax
import jax.extend.core as jex
import numpy as np
from jax.extend import source_info_util

from jaxckpt.ir import Trait, trait_of
from jaxckpt.program.flat_program import AnyJaxpr
from jaxckpt.program.inline import CUSTOM_DERIVATIVES, JITS, called_jaxpr, constants_of, inline, open_jaxpr

_NAMES = frozenset({"name", "debug_info", "debug", "name_and_src_info", "ctx_mesh", "context_mesh"})
"""Parameters with names that people give; the computation does not depend on them."""
_RELU_CALLS = JITS | CUSTOM_DERIVATIVES
"""`jax.nn.relu` is a function with a derivative rule around a jitted one."""
_FRAMES = 40
"""Frames looked at, from the innermost; JAX's own do not count. Bounds the cost; no benchmark fixed the exact value."""
_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]")
_LINE = re.compile(r"(.*?:\d+)(?::\d+)? \(")


class Details:
    """Writes the parameters that an equation's result depends on, as a text that is the same in every process.

    Numbers, shapes, dtypes and dimension numbers are written out; a body becomes a hash of its own equations;
    functions, meshes' devices and objects with addresses are left to the name of their type.
    """

    def __init__(self) -> None:
        self._written: dict[int, tuple[Any, str]] = {}

    def of(self, eqn: jex.JaxprEqn) -> str:
        """The detail of one equation: "parameter=value" of set parameters, sorted, then "@" and where literals are."""
        parts = [
            f"{name}={text}"
            for name, param in sorted(eqn.params.items())
            if name not in _NAMES and not _is_unset_sharding(eqn, param) and (text := self._text(param))
        ]
        literals = [str(i) for i, atom in enumerate(eqn.invars) if not isinstance(atom, jex.Var)]
        return " ".join(parts + (["@" + ",".join(literals)] if literals else []))

    def _text(self, param: object) -> str:
        if param is None or isinstance(param, (bool, int, float, complex, str)):
            return "" if param is None else repr(param)
        if id(param) not in self._written:
            self._written[id(param)] = (param, self._text_of_object(param))
        return self._written[id(param)][1]

    def _text_of_object(self, param: object) -> str:
        if isinstance(param, enum.Enum):
            return param.name
        if isinstance(param, np.dtype):
            return str(param)
        if isinstance(param, type):
            return param.__name__
        if isinstance(param, np.generic):
            return repr(param.item())
        if isinstance(param, AnyJaxpr):
            return self.of_body(param)
        if isinstance(param, jax.sharding.Sharding):
            return str(getattr(param, "spec", type(param).__name__))
        if isinstance(param, (jax.sharding.Mesh, jax.sharding.AbstractMesh)):
            return str(dict(param.shape))
        return self._text_of_structure(param)

    def _text_of_structure(self, param: object) -> str:
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

    def of_body(self, jaxpr: AnyJaxpr) -> str:
        """A hash of the structure of a jaxpr: primitives, connections, types, details."""
        return hashlib.sha256("".join(self._body_lines(jaxpr)).encode()).hexdigest()[:12]

    def _body_lines(self, closed: AnyJaxpr) -> Iterator[str]:
        jaxpr = open_jaxpr(closed)
        numbers: dict[jex.Var, int] = {}
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


def _is_unset_sharding(eqn: jex.JaxprEqn, param: object) -> bool:
    """True if a parameter is the empty sharding that JAX gives new arrays within the context of an automatic mesh.

    The same step has none where it is traced without one. An empty sharding of a constraint means "replicated".
    """
    if not isinstance(param, jax.sharding.NamedSharding) or eqn.primitive.name == "sharding_constraint":
        return False
    automatic = all(kind == jax.sharding.AxisType.Auto for kind in param.mesh.axis_types)
    return automatic and not any(param.spec)


class TraitFinder:
    """Finds the traits that policies match on, in bodies too: random bits, collectives, batched products."""

    def __init__(self) -> None:
        self._bodies: dict[int, frozenset[Trait]] = {}

    def of(self, eqn: jex.JaxprEqn) -> frozenset[Trait]:
        """The traits of one equation; of its bodies those that policies match on."""
        found = self._with_bodies(eqn)
        if _is_relu(eqn):
            return found | {Trait.RELU}
        return found | {Trait.REUSES_ARRAY} if _reuses_array(eqn) else found

    def _with_bodies(self, eqn: jex.JaxprEqn) -> frozenset[Trait]:
        own = trait_of(eqn.primitive.name)
        found = frozenset() if own is None else frozenset({own})
        if eqn.primitive.name == "dot_general" and eqn.params["dimension_numbers"][1][0]:
            found |= {Trait.BATCHED}
        for jaxpr in jex.jaxprs_in_params(eqn.params):
            found |= self._of_body(jaxpr)
        return found

    def _of_body(self, jaxpr: jex.Jaxpr) -> frozenset[Trait]:
        if id(jaxpr) not in self._bodies:
            self._bodies[id(jaxpr)] = frozenset().union(*map(self._with_bodies, jaxpr.eqns))
        return self._bodies[id(jaxpr)]


def _is_relu(eqn: jex.JaxprEqn) -> bool:
    """True for the maximum of an array and a literal, and for a call that does nothing else."""
    if eqn.primitive.name == "max":
        return any(isinstance(atom, jex.Literal) for atom in eqn.invars)
    body = called_jaxpr(eqn.params) if eqn.primitive.name in _RELU_CALLS else None
    equations = [] if body is None else open_jaxpr(body).eqns
    return len(equations) == 1 and _is_relu(equations[0])


def _reuses_array(eqn: jex.JaxprEqn) -> bool:
    """True for a call with a derivative of its own, of whose body several equations read one array."""
    body = called_jaxpr(eqn.params) if eqn.primitive.name in CUSTOM_DERIVATIVES else None
    if body is None:
        return False
    equations = inline(body, inline_custom=True).equations
    read = Counter(v for each in equations for v in each.variables() if getattr(v.aval, "shape", ()))
    return any(times > 1 for times in read.values())


def placement_of(eqn: jex.JaxprEqn) -> str:
    """The mesh that a parameter or a result type of an equation names, as text; "" for none."""
    named = eqn.params.get("mesh", getattr(eqn.params.get("sharding"), "mesh", None))
    meshes = [named, *(getattr(getattr(v.aval, "sharding", None), "mesh", None) for v in eqn.outvars)]
    for mesh in meshes:
        if getattr(mesh, "shape", None):
            return " ".join(f"{axis}={size}" for axis, size in dict(mesh.shape).items())
    return ""


class SourceLines:
    """Looks up source lines: the innermost frame in no installed package, once for a traceback, which calls share."""

    def __init__(self) -> None:
        self._seen: dict[int, str] = {}

    def of(self, eqn: jex.JaxprEqn) -> str:
        """The user's line as "file.py:123", or "" where JAX keeps no traceback."""
        traceback = eqn.source_info.traceback
        if traceback is None:
            return ""
        if id(traceback) not in self._seen:
            # Of the frames, outermost first, the last that is the user's own; else the last.
            frames = source_info_util.summarize(eqn.source_info, num_frames=_FRAMES).splitlines()
            lines = [match[1] for frame in frames if (match := _LINE.match(frame)) is not None]
            own = [line for line in lines if not _INSTALLED.search(line)]
            self._seen[id(traceback)] = (own or lines or [""])[-1]
        return self._seen[id(traceback)]
