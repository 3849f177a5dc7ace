"""Jaxprs as short texts that are the same in every version of jax: primitives, variables, the four parts of a scan."""

import string
from collections.abc import Iterator

import jax.extend.core as jex

from jaxckpt import _compat
from jaxckpt.program.inline import open_jaxpr


def text_of(jaxpr):
    """One line an equation, bodies indented; variables are numbered as they come."""
    names: dict = {}
    return "\n".join(_lines(open_jaxpr(jaxpr), names, ""))


def _name(atom, names) -> str:
    if isinstance(atom, jex.Literal):
        return f"{atom.val}"
    number = names.setdefault(atom, len(names))
    letters = string.ascii_lowercase
    return letters[number] if number < 26 else letters[number // 26 - 1] + letters[number % 26]


def _joined(atoms, names) -> str:
    return " ".join(_name(atom, names) for atom in atoms)


def _lines(jaxpr, names, indent) -> Iterator[str]:
    for eqn in jaxpr.eqns:
        primitive = eqn.primitive.name
        reads = _joined(eqn.invars, names)
        if primitive == "scan":
            body = open_jaxpr(eqn.params["jaxpr"])
            yield f"{indent}{_scan(eqn, body, names)}"
            yield from _lines(body, names, indent + "  ")
            yield f"{indent}  -> {_joined(body.outvars, names)}"
        elif primitive == "cond":
            yield f"{indent}{_joined(eqn.outvars, names)} = cond {reads}"
            for branch in map(open_jaxpr, eqn.params["branches"]):
                yield f"{indent}  branch {_joined(branch.invars, names)}"
                yield from _lines(branch, names, indent + "    ")
                yield f"{indent}    -> {_joined(branch.outvars, names)}"
        else:
            yield f"{indent}{_joined(eqn.outvars, names)} = {primitive} {reads}".rstrip()


def _scan(eqn, body, names) -> str:
    """Constants, carry and slices of a scan, each as inside=outside, and its results."""
    pairs = [
        f"{_name(inner, names)}={_name(outer, names)}" for outer, inner in zip(eqn.invars, body.invars, strict=True)
    ]
    constants, carry, slices = (" ".join(part) or "-" for part in _compat.scan_operands(eqn.params, pairs))
    order = " reverse" if eqn.params["reverse"] else ""
    return f"{_joined(eqn.outvars, names)} = scan {eqn.params['length']}{order} [{constants} | {carry} | {slices}]"
