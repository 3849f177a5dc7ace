"""A traced part of a step with the bodies of its loops and branches, and all of it as one graph.

JAX's own `jax.checkpoint` looks for names in the bodies of `scan` and `cond`, so policies decide about the values in
these bodies too. Bodies of custom derivatives, kernels and the user's `jax.checkpoint`s stay closed: each is one op.

Read after `jax_policy`, `jaxckpt.program.inline`.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax.extend.core as jex
from jax.extend.core.primitives import name_p
from jax.extend.source_info_util import NameStack

from jaxckpt import _compat
from jaxckpt.annotate.jax_policy import is_ours
from jaxckpt.ir import Graph, Kind, Op, Phase
from jaxckpt.ir.scope import POLICY_MARK
from jaxckpt.program import Equation, FlatProgram
from jaxckpt.program.flat_program import Atom, renamed, with_name_stack
from jaxckpt.program.inline import inline
from jaxckpt.trace.graph import graph_of

_BODIES = {"scan": "jaxpr", "cond": "branches"}
"""Primitives whose bodies `jax.checkpoint` looks into, and the parameter that holds them."""

AROUND = "jaxckpt"
"""The primitive of ops that stand for the step around a part."""


@dataclass(frozen=True, slots=True)
class Body:
    """One level of equations, whose variables are its own, and the bodies in it by the position of their equation.

    Inner scopes have decided already, but outer rules may match values in their bodies.
    """

    program: FlatProgram
    inner: dict[int, tuple["Body", ...]]
    scopes: dict[int, tuple["Body", ...]]


def body_of(closed: jex.ClosedJaxpr, *, repeats: str = "") -> Body:
    """Opens a closed jaxpr. A name that all its equations repeat from the name stack around it is removed."""
    program = inline(closed, keep_user_remat=True)
    if repeats:
        program = program.replace(equations=tuple(_without_first(each, repeats) for each in program.equations))
    return _opened(program)


def _without_first(equation: Equation, name: str) -> Equation:
    stack = equation.eqn.source_info.name_stack
    if _compat.name_stack_marks(stack)[:1] != ((name, False),):
        return equation
    return Equation(with_name_stack(equation.eqn, _compat.name_stack_without(stack, frozenset({0}))))


def _opened(program: FlatProgram) -> Body:
    eqns = [equation.eqn for equation in program.equations]
    inner = {position: bodies for position, eqn in enumerate(eqns) if (bodies := _bodies(eqn))}
    scopes = {position: bodies for position, eqn in enumerate(eqns) if (bodies := _inner_scopes(eqn))}
    return Body(program, inner, scopes)


def _bodies(eqn: jex.JaxprEqn) -> tuple[Body, ...]:
    """The bodies of a loop or of branches; none where they have effects, or arrays of their own."""
    held = eqn.params.get(_BODIES.get(eqn.primitive.name, ""))
    if held is None or eqn.effects:
        return ()
    programs = [inline(each, keep_user_remat=True) for each in (held if isinstance(held, tuple) else (held,))]
    return () if any(p.constants for p in programs) else tuple(_opened(_with_fresh_variables(p)) for p in programs)


def _inner_scopes(eqn: jex.JaxprEqn) -> tuple[Body, ...]:
    """The body of an inner scope, and of calls in it that carry its tags; none of other equations."""
    params = _remat_params(eqn)
    return _readonly(params["jaxpr"]) if is_ours(params.get("policy")) else ()


def _readonly(jaxpr: jex.Jaxpr | jex.ClosedJaxpr) -> tuple[Body, ...]:
    """A body into which no tag is written, with the bodies of calls in it."""
    program = inline(jaxpr, keep_user_remat=True)
    if program.constants:
        return ()
    body = _opened(_with_fresh_variables(program))
    calls = (each.eqn for each in body.program.equations if each.eqn.primitive.name == "custom_jvp_call")
    return (body, *(inner for eqn in calls for inner in _readonly(eqn.params["call_jaxpr"])))


def _remat_params(eqn: jex.JaxprEqn) -> dict[str, Any]:
    """The parameters of a `jax.checkpoint`, JAX's new one (`jax_remat3`) included."""
    held = eqn.params.get("_prim")
    return held.params if type(held).__name__ == "RematTraced" else eqn.params


def with_bodies(eqn: jex.JaxprEqn, bodies: Sequence[jex.ClosedJaxpr]) -> jex.JaxprEqn:
    """The equation of a loop or of branches with other bodies of the same types."""
    key = _BODIES[eqn.primitive.name]
    held = tuple(bodies) if isinstance(eqn.params[key], tuple) else bodies[0]
    return eqn.replace(params={**eqn.params, key: held})


def graph_of_body(body: Body, stack: NameStack, *, arguments: bool) -> tuple[Graph, tuple[jex.Var, ...]]:
    """All levels as one graph whose every value is a residual, and the variable of each value by its id.

    With `arguments` the part's arguments are forward values too, made outside.
    """
    levels = list(_levels(body, stack))
    program = body.program.replace(
        invars=tuple(v for level, _ in levels for v in level.program.invars),
        constants=tuple(c for level, _ in levels for c in level.program.constants),
        equations=tuple(equation for _, placed in levels for equation in placed),
    )
    phases = [Phase.FORWARD] * len(program.equations)
    graph, variables = graph_of(program, phases, shardings=[None] * len(program.invars), donated=frozenset())
    if arguments:
        graph = _with_arguments(graph, len(body.program.invars))
    residuals = tuple(value for op in graph.ops for value in op.writes)
    return dataclasses.replace(graph, ops=(*graph.ops, _op(len(graph.ops), Phase.BACKWARD, reads=residuals))), variables


def _with_arguments(graph: Graph, count: int) -> Graph:
    """The graph with its first arguments made by an op outside of every scope."""
    outside = _op(0, Phase.FORWARD, writes=graph.inputs[:count])
    ops = (outside, *(dataclasses.replace(op, id=op.id + 1) for op in graph.ops))
    return dataclasses.replace(graph, inputs=graph.inputs[count:], ops=ops)


def _op(number: int, phase: Phase, *, reads: tuple[int, ...] = (), writes: tuple[int, ...] = ()) -> Op:
    return Op(id=number, primitive=AROUND, kind=Kind.OPAQUE, reads=reads, writes=writes, scope="", phase=phase)


def _levels(body: Body, stack: NameStack) -> Iterator[tuple[Body, list[Equation]]]:
    """Each level with its equations under the full name stack; an inner scope's own mark is removed."""
    placed = [Equation(_placed(equation.eqn, stack)) for equation in body.program.equations]
    yield body, placed
    for position, bodies in (*body.inner.items(), *body.scopes.items()):
        for each in bodies:
            yield from _levels(each, placed[position].eqn.source_info.name_stack)


def _placed(eqn: jex.JaxprEqn, stack: NameStack) -> jex.JaxprEqn:
    """The equation for the graph: under the full name stack, and a name of any kind as a `name` equation."""
    full = stack + eqn.source_info.name_stack
    if is_ours(_remat_params(eqn).get("policy")):
        full = unmarked(full)
    held = eqn.params.get("_prim")
    if type(held).__name__ == "CheckpointName":
        eqn = eqn.replace(primitive=name_p, params={"name": held.params["name"]})
    return with_name_stack(eqn, full)


def unmarked(stack: NameStack) -> NameStack:
    """A name stack without the marks of policies."""
    marks = _compat.name_stack_marks(stack)
    drop = frozenset(i for i, (name, _) in enumerate(marks) if name.startswith(POLICY_MARK))
    return _compat.name_stack_without(stack, drop)


def _with_fresh_variables(program: FlatProgram) -> FlatProgram:
    """The same level with fresh variables; JAX may use one body object for several loops."""
    eqns = [equation.eqn for equation in program.equations]
    written = [*program.invars, *(variable for eqn in eqns for variable in eqn.outvars)]
    fresh = {variable: jex.Var(variable.aval) for variable in written}

    def new(atoms: Iterable[Atom]) -> tuple[Atom, ...]:
        return tuple(renamed(atom, fresh) for atom in atoms)

    return program.replace(
        invars=new(program.invars),
        equations=tuple(Equation(e.replace(invars=list(new(e.invars)), outvars=list(new(e.outvars)))) for e in eqns),
        outvars=new(program.outvars),
    )
