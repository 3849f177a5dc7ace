"""Lints of loops: the carry of a scan, its stacked residuals, and names and offloads in its body.

Read after `context`.
"""

from collections.abc import Iterator, Mapping

import jax
import jax.extend.core as jex

from jaxckpt import _compat
from jaxckpt._units import format_bytes
from jaxckpt.ir import Kind, kind_of
from jaxckpt.linter.context import Diagnostic, EquationSite, LintContext, equations_inside
from jaxckpt.linter.policies import OFFLOAD_FLOOR_BYTES
from jaxckpt.program import FlatProgram
from jaxckpt.program.inline import inline, open_jaxpr
from jaxckpt.rewrite.known_bad import misreads_offloaded_stacks
from jaxckpt.trace.sharding import aval_bytes

_PASSES_ON = frozenset({Kind.VIEW, Kind.BARRIER})
_CHEAP = frozenset({Kind.VIEW, Kind.ELEMENTWISE})
_Producers = Mapping[jex.Var, jex.JaxprEqn]
_MUCH_LARGER = 8
"""A stacked value that is so many times larger than its sources is better recomputed."""
_STACK_FLOOR_BYTES = 64 * 1024


def returned_parameters(context: LintContext) -> Iterator[Diagnostic]:
    """Scans that return arrays that they scan over, unchanged."""
    for site, body in _forward_scans(context):
        constants, carry, stacked = _compat.scan_operands(site.eqn.params, site.eqn.invars)
        passed = set(body.invars[: len(constants)]) | set(body.invars[len(constants) + len(carry) :])
        producer = _producers(body)
        for inner, outer in zip(body.outvars[len(carry) :], site.eqn.outvars[len(carry) :], strict=True):
            if _is_returned(context, outer) and _source(inner, producer) in passed and (stacked or constants):
                yield Diagnostic(
                    where=context.location_of(site),
                    text=f"The scan returns {outer.aval.str_short()} ({format_bytes(aval_bytes(outer.aval))})"
                    " unchanged: a second copy of all layers.",
                    fix="Return from the body only what it changes; with Flax NNX, split the parameters off its state.",
                )


def stacked_argument_derived(context: LintContext) -> Iterator[Diagnostic]:
    """Masks and broadcasts that a scan stacks for the backward, one copy an iteration."""
    for site, body in _forward_scans(context):
        carry = len(_compat.scan_operands(site.eqn.params, site.eqn.invars)[1])
        producer = _producers(body)
        for inner, outer in zip(body.outvars[carry:], site.eqn.outvars[carry:], strict=True):
            source_bytes = _source_bytes(inner, producer)
            size_bytes = aval_bytes(outer.aval)
            if source_bytes is None or size_bytes < _STACK_FLOOR_BYTES or _is_returned(context, outer):
                continue
            if aval_bytes(inner.aval) >= _MUCH_LARGER * source_bytes:
                yield Diagnostic(
                    where=context.location_of(site),
                    text=f"The scan stacks {outer.aval.str_short()} ({format_bytes(size_bytes)}) for the backward, and"
                    f" computes it from {format_bytes(source_bytes)} by views and elementwise ops in each iteration.",
                    fix="Compute it once before the loop, or put jax.checkpoint around the loop's body and save what"
                    " matters by name.",
                )


def small_loop_offloads(context: LintContext) -> Iterator[Diagnostic]:
    """Small arrays that the user's own policies send to host memory."""
    for site in context.sites:
        if site.goes_to_host and not site.is_transposed and site.written_bytes < OFFLOAD_FLOOR_BYTES:
            yield Diagnostic(
                where=context.location_of(site),
                text=f"{format_bytes(site.written_bytes)} are copied to host memory at a time; below"
                f" {format_bytes(OFFLOAD_FLOOR_BYTES)} a copy takes longer to start than to move.",
                fix="Save this value, or offload a larger one.",
            )


def nested_offloads(context: LintContext) -> Iterator[Diagnostic]:
    """Offloads inside a loop inside a loop, which XLA does not compile."""
    for site in context.sites:
        if site.goes_to_host and len(site.loops) > 1:
            yield Diagnostic(
                where=context.location_of(site),
                text="An offload inside a loop inside a loop: XLA for GPUs and TPUs refuses to compile it.",
                fix="Offload the input of the outer block, and recompute all inside it.",
            )


def miscompiled_offloads(context: LintContext) -> Iterator[Diagnostic]:
    """Offloads in a scan, for a compiler that may get their gradients wrong."""
    target = context.target
    if target is None or not misreads_offloaded_stacks(target.platform, target.compiler_version):
        return
    for site in context.sites:
        if site.goes_to_host and site.loops:
            yield Diagnostic(
                where=context.location_of(site),
                text=f"An offload in a scan: the compiler of {target.name}, {target.compiler_version}, may read the"
                " residuals of another iteration in the backward, and gradients are then wrong without any error"
                " (openxla/xla#46308).",
                fix="Use jax 0.12 or later, or save the value; as a stopgap set"
                " --xla_disable_hlo_passes=dynamic-slice-annotator in XLA_FLAGS and compare gradients.",
            )


def named_carries(context: LintContext, *, offloaded: bool) -> Iterator[Diagnostic]:
    """Offloaded names, or saved ones, on the carry's output of an iteration."""
    wanted = _names_in_policies(context, offloaded=offloaded)
    for site, body in _forward_scans(context) if wanted else ():
        if any(each.goes_to_host for each in equations_inside(context.sites, site)):
            continue
        carry = len(_compat.scan_operands(site.eqn.params, site.eqn.invars)[1])
        producer = _producers(body)
        on_carry = {_name_of(inner, producer) for inner in body.outvars[:carry]}
        for name in sorted((on_carry & wanted) - _names_inside(body)):
            yield Diagnostic(
                where=context.location_of(site),
                text=f"{name!r} names the output of the carry. The backward reads that value as the next"
                f" iteration's input, which has no name: nothing is {'offloaded' if offloaded else 'saved'} for it.",
                fix=f'Name the input of the body instead: x = checkpoint_name(x, "{name}") as its first line.',
            )


def _names_in_policies(context: LintContext, *, offloaded: bool) -> set[str]:
    """Names that the user's policies offload, or those that they save and do not offload."""
    read = [policy for _, policies in context.checkpoints for policy in policies]
    offloads = {name for policy in read for name in policy.offloaded}
    return offloads if offloaded else {name for policy in read for name in policy.saved} - offloads


def _forward_scans(context: LintContext) -> Iterator[tuple[EquationSite, FlatProgram]]:
    for site in context.sites:
        if site.primitive == "scan" and not site.is_transposed and not site.is_recomputed:
            yield site, inline(site.eqn.params["jaxpr"])


def _producers(body: FlatProgram) -> _Producers:
    return {variable: each.eqn for each in body.equations for variable in each.eqn.outvars}


def _names_inside(body: FlatProgram) -> set[str]:
    """Names on values that something in the body reads."""
    read = {variable for each in body.equations for variable in each.variables()}
    named = (each.eqn for each in body.equations if each.eqn.primitive.name == "name")
    return {eqn.params["name"] for eqn in named if eqn.outvars[0] in read}


def _name_of(atom: jax.core.Atom, producer: _Producers) -> str:
    """The name on a value or on a value that it is a view of; "" for none."""
    while isinstance(atom, jex.Var) and (eqn := producer.get(atom)) is not None:
        if eqn.primitive.name == "name":
            return str(eqn.params["name"])
        if kind_of(eqn.primitive.name) not in _PASSES_ON or len(eqn.invars) != 1:
            return ""
        atom = eqn.invars[0]
    return ""


def _source(atom: jax.core.Atom, producer: _Producers) -> jex.Var | None:
    """The value behind names, roundings and barriers; None for a literal."""
    while isinstance(atom, jex.Var) and (eqn := producer.get(atom)) is not None:
        if eqn.primitive.name not in ("name", "reduce_precision", "copy", "copy_p", "optimization_barrier"):
            return atom
        atom = eqn.invars[eqn.outvars.index(atom) if len(eqn.outvars) > 1 else 0]
    return atom if isinstance(atom, jex.Var) else None


def _source_bytes(atom: jax.core.Atom, producer: _Producers) -> int | None:
    """Bytes of the body's arguments from which views and elementwise ops derive a value; None for any other value.

    The rule of `jaxckpt.schedule.argument_derived`, for the jaxpr of a loop's body instead of a graph.
    """
    sources: set[jex.Var] = set()
    todo, visited = [atom], set()
    while todo:
        each = todo.pop()
        if not isinstance(each, jex.Var) or each in visited:
            continue
        visited.add(each)
        eqn = producer.get(each)
        if eqn is None:
            sources.add(each)
        elif kind_of(eqn.primitive.name) in _CHEAP and not eqn.effects:
            todo.extend(eqn.invars)
        else:
            return None
    return sum(aval_bytes(v.aval) for v in sources) if atom not in sources else None


def _is_returned(context: LintContext, variable: jex.Var) -> bool:
    """True if an array of the outermost level is a result of the step, possibly behind names."""
    jaxpr = open_jaxpr(context.traced.stage.jaxpr)
    producer = {v: eqn for eqn in jaxpr.eqns for v in eqn.outvars}
    return variable in {_source(v, producer) for v in jaxpr.outvars} | set(jaxpr.outvars)
