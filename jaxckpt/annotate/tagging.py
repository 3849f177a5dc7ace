"""Tags in a traced part: a name on each value that a policy saves or offloads, none on values that are recomputed.

A tag is a `name` equation after the producer of a value; all readers read the named value. Some derivatives read the
result of their own equation (that of `exp` is `exp`): there the derivative reads the named value too, or the equation
would be recomputed only for its derivative.

Read after `open_body`, `jax_policy`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import jax
import jax.extend.core as jex
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from jaxckpt.annotate.jax_policy import tag_of
from jaxckpt.annotate.open_body import AROUND, Body, with_bodies
from jaxckpt.ir import Graph, Kind, Op
from jaxckpt.outline import closed_jaxpr
from jaxckpt.policy import Resolved
from jaxckpt.program import Equation
from jaxckpt.program.flat_program import array_spec, traced_eqns, with_name_stack
from jaxckpt.program.inline import inline

_READS_ITS_RESULT = """
    exp exp2 expm1 tanh tan logistic sqrt rsqrt cbrt erf_inv reduce_max reduce_min cummax cummin cumprod cumlogsumexp
    cholesky custom_jvp_call
"""
READS_ITS_RESULT = frozenset(_READS_ITS_RESULT.split())
"""Primitives of one operand whose derivative reads the result, or may."""


def tags_of(resolved: Iterable[Resolved], graph: Graph, variables: Sequence[jex.Var]) -> dict[jex.Var, str]:
    """The tag of each variable that has one.

    A view or a name of another value gets none where that value is available anyway, unless a rule decided about the
    view. Arguments are available anyway; a rule can offload them.
    """
    tags: dict[int, str] = {}
    available = {*graph.inputs, *graph.constants}
    for each in resolved:
        value, tag = each.forward_value.id, tag_of(each.decision)
        producer = graph.producer[value]
        assert producer is not None, "ops write forward values"
        op = graph.ops[producer]
        if op.primitive == AROUND:
            available.add(value)
            if each.decision.on_host and tag is not None:
                tags[value] = tag
        elif tag is not None:
            if not _is_view_of_available(op, each, tags=tags, available=available):
                tags[value] = tag
            available.add(value)
    return {variables[value]: tag for value, tag in tags.items()}


def _is_view_of_available(op: Op, resolved: Resolved, *, tags: Mapping[int, str], available: set[int]) -> bool:
    if op.primitive == "name":
        return op.reads[0] in tags
    return op.kind is Kind.VIEW and resolved.rule is None and available.issuperset(op.reads)


def tagged(body: Body, tags: Mapping[jex.Var, str], *, derivatives: bool = True) -> jex.ClosedJaxpr:
    """A closed jaxpr that computes the same, with tags.

    With `derivatives`, derivatives that read their own result read the tagged one.
    """
    writer = _TagInserter(body, tags, derivatives=derivatives)
    return closed_jaxpr(
        body.program, list(map(Equation, writer.eqns)), [writer.current(atom) for atom in body.program.outvars]
    )


class _TagInserter:
    """Writes the equations of one level; readers of a tagged value read the result of the tag."""

    def __init__(self, body: Body, tags: Mapping[jex.Var, str], *, derivatives: bool):
        self.eqns: list[jex.JaxprEqn] = []
        self._replaced: dict[jex.Var, jex.Var] = {}
        self._tags = tags
        for variable in body.program.invars:
            self._tag(variable, None)
        for position, equation in enumerate(body.program.equations):
            eqn = equation.eqn
            if position in body.inner:
                bodies = body.inner[position]
                eqn = with_bodies(eqn, [tagged(each, tags, derivatives=derivatives) for each in bodies])
            eqn = eqn.replace(invars=[self.current(atom) for atom in eqn.invars])
            if not (derivatives and self._with_derivative(eqn)):
                self._append(eqn)

    def current(self, atom: jax.core.Atom) -> jax.core.Atom:
        return self._replaced.get(atom, atom) if isinstance(atom, jex.Var) else atom

    def _append(self, eqn: jex.JaxprEqn) -> None:
        self.eqns.append(eqn)
        for variable in eqn.outvars:
            self._tag(variable, eqn)

    def _tag(self, variable: jex.Var, eqn: jex.JaxprEqn | None) -> None:
        if variable not in self._tags:
            return
        named = _named(variable, self._tags[variable])
        if eqn is not None:
            named = named.replace(source_info=eqn.source_info)
        self.eqns.append(named)
        (self._replaced[variable],) = named.outvars

    def _with_derivative(self, eqn: jex.JaxprEqn) -> bool:
        """Writes an equation whose derivative reads the tagged result; True if that is possible."""
        tags = [self._tags.get(variable) for variable in eqn.outvars]
        if not any(tags) or not _reads_its_result(eqn):
            return False
        (operand,) = {atom for atom in eqn.invars if isinstance(atom, jex.Var)}
        call = jax.make_jaxpr(_call_of(eqn, operand, tags))(array_spec(operand.aval))
        program = inline(call)
        if program.constants or len(program.equations) != 1:
            return False
        outvars = [jex.Var(variable.aval) for variable in eqn.outvars]
        (only,) = program.equations
        self.eqns.append(only.eqn.replace(invars=[operand], outvars=outvars, source_info=eqn.source_info))
        self._replaced.update(zip(eqn.outvars, outvars, strict=True))
        return True


def _named(variable: jex.Var, tag: str) -> jex.JaxprEqn:
    """The equation of a name, as the installed JAX writes it."""
    (eqn,) = traced_eqns(lambda x: checkpoint_name(x, tag), [variable])
    return eqn


def _reads_its_result(eqn: jex.JaxprEqn) -> bool:
    if eqn.primitive.name not in READS_ITS_RESULT or eqn.effects:
        return False
    operands = {atom for atom in eqn.invars if isinstance(atom, jex.Var)}
    floating = all(jnp.issubdtype(v.aval.dtype, jnp.inexact) for v in (*operands, *eqn.outvars))
    return len(operands) == 1 and floating


def _call_of(eqn: jex.JaxprEqn, operand: jex.Var, tags: Sequence[str | None]) -> Callable[[jax.Array], list[jax.Array]]:
    """The equation as a function whose derivative reads the tagged result."""
    eqn = with_name_stack(eqn, eqn.source_info.name_stack[:0])
    debug_info = jex.DebugInfo("jaxckpt", "jaxckpt", None, None)
    jaxpr = jex.Jaxpr([], [operand], eqn.outvars, [eqn], eqn.effects, debug_info)
    plain = jex.jaxpr_as_fun(jex.ClosedJaxpr(jaxpr, ()))

    @jax.custom_jvp
    def call(x: jax.Array) -> list[jax.Array]:
        return [y if tag is None else checkpoint_name(y, tag) for y, tag in zip(plain(x), tags, strict=True)]

    @call.defjvp
    def derivative(
        primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]
    ) -> tuple[list[jax.Array], list[jax.Array]]:
        closed = jax.make_jaxpr(lambda x, t: jax.jvp(plain, (x,), (t,)))(*primals, *tangents)
        program = inline(closed)
        results = zip(program.outvars, tags, strict=False)  # the results stand before their tangents
        named = {v: tag for v, tag in results if tag is not None and isinstance(v, jex.Var)}
        flat = jex.jaxpr_as_fun(tagged(Body(program, {}, {}), named, derivatives=False))(*primals, *tangents)
        return flat[: len(tags)], flat[len(tags) :]

    return call
