"""Lints of loops: what a scan carries, what it stacks, and what is named or offloaded in it.

Read after `context`.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import jax.extend.core as jex

from jaxckpt import _compat
from jaxckpt._units import format_bytes
from jaxckpt.ir import Kind, kind_of
from jaxckpt.linter.context import Diagnostic, EquationSite, LintContext, equations_inside
from jaxckpt.linter.policies import OFFLOAD_FLOOR_BYTES
from jaxckpt.program import FlatProgram
from jaxckpt.program.inline import inline, open_jaxpr
from jaxckpt.trace.sharding import aval_bytes

_PASSES_ON = frozenset({Kind.VIEW, Kind.BARRIER})
_CHEAP = frozenset({Kind.VIEW, Kind.ELEMENTWISE})
_MUCH_LARGER = 8
"""A stacked value that is so many times larger than all that it is made of is better made again."""
_STACK_FLOOR_BYTES = 64 * 1024


def offloaded_carry_outputs(context: LintContext) -> Iterator[Diagnostic]:
    """Names that a policy offloads and that stand on what an iteration passes to the next."""
    yield from _named_carries(context, offloaded=True)


def saved_carry_outputs(context: LintContext) -> Iterator[Diagnostic]:
    """Names that a policy saves and that stand on what an iteration passes to the next."""
    yield from _named_carries(context, offloaded=False)


def returned_parameters(context: LintContext) -> Iterator[Diagnostic]:
    """Scans that return the arrays that they go through."""
    for site, body in _forward_scans(context):
        constants, carry, stacked = _compat.scan_operands(site.eqn.params, site.eqn.invars)
        passed = set(body.invars[: len(constants)]) | set(body.invars[len(constants) + len(carry) :])
        made_by = _makers(body)
        for inner, outer in zip(body.outvars[len(carry) :], site.eqn.outvars[len(carry) :], strict=True):
            if _is_returned(context, outer) and _behind(inner, made_by) in passed and (stacked or constants):
                yield Diagnostic(
                    where=context.location_of(site),
                    text=f"The scan returns {outer.aval.str_short()} ({format_bytes(aval_bytes(outer.aval))}) as it"
                    " came in: a second copy of all layers.",
                    fix="Return from the body only what it changes; with Flax NNX, split the parameters off its state.",
                )


def stacked_light_values(context: LintContext) -> Iterator[Diagnostic]:
    """Masks and broadcasts that a scan stacks for the backward, one copy an iteration."""
    for site, body in _forward_scans(context):
        carry = len(_compat.scan_operands(site.eqn.params, site.eqn.invars)[1])
        made_by = _makers(body)
        for inner, outer in zip(body.outvars[carry:], site.eqn.outvars[carry:], strict=True):
            source_bytes = _light_sources(inner, made_by)
            size_bytes = aval_bytes(outer.aval)
            if source_bytes is None or size_bytes < _STACK_FLOOR_BYTES or _is_returned(context, outer):
                continue
            if aval_bytes(inner.aval) >= _MUCH_LARGER * source_bytes:
                yield Diagnostic(
                    where=context.location_of(site),
                    text=f"The scan keeps {outer.aval.str_short()} ({format_bytes(size_bytes)}) for the backward, which"
                    f" views and elementwise work make of {format_bytes(source_bytes)} an iteration.",
                    fix="Make it once before the loop, or put jax.checkpoint around the loop's body and save what"
                    " matters by name.",
                )


def small_loop_offloads(context: LintContext) -> Iterator[Diagnostic]:
    """Small arrays that the user's own policies send to host memory."""
    for site in context.sites:
        if site.goes_to_host and not site.is_transposed and site.written_bytes < OFFLOAD_FLOOR_BYTES:
            yield Diagnostic(
                where=context.location_of(site),
                text=f"{format_bytes(site.written_bytes)} go to host memory at a time; below"
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


def _named_carries(context: LintContext, *, offloaded: bool) -> Iterator[Diagnostic]:
    read = [policy for _, policies in context.checkpoints for policy in policies]
    offloads = {name for policy in read for name in policy.offloaded}
    wanted = offloads if offloaded else {name for policy in read for name in policy.saved} - offloads
    for site, body in _forward_scans(context) if wanted else ():
        if any(each.goes_to_host for each in equations_inside(context.sites, site)):
            continue
        carry = len(_compat.scan_operands(site.eqn.params, site.eqn.invars)[1])
        made_by = _makers(body)
        on_carry = {_name_of(inner, made_by) for inner in body.outvars[:carry]}
        for name in sorted((on_carry & wanted) - _names_inside(body)):
            yield Diagnostic(
                where=context.location_of(site),
                text=f"{name!r} names what an iteration passes to the next. The backward reads it as the next"
                f" iteration's input, which has no name: nothing is {'offloaded' if offloaded else 'saved'} for it.",
                fix=f'Name the input of the body instead: x = checkpoint_name(x, "{name}") as its first line.',
            )


def _forward_scans(context: LintContext) -> Iterator[tuple[EquationSite, FlatProgram]]:
    for site in context.sites:
        if site.primitive == "scan" and not site.is_transposed and not site.is_recomputed:
            yield site, inline(site.eqn.params["jaxpr"])


def _makers(body: FlatProgram) -> Mapping[Any, Any]:
    return {variable: each.eqn for each in body.equations for variable in each.eqn.outvars}


def _names_inside(body: FlatProgram) -> set[str]:
    """Names on values that something in the body reads."""
    read = {variable for each in body.equations for variable in each.variables()}
    named = (each.eqn for each in body.equations if each.eqn.primitive.name == "name")
    return {eqn.params["name"] for eqn in named if eqn.outvars[0] in read}


def _name_of(atom: Any, made_by: Mapping[Any, Any]) -> str:
    """The name on a value, views looked through; "" for none."""
    while isinstance(atom, jex.Var) and (eqn := made_by.get(atom)) is not None:
        if eqn.primitive.name == "name":
            return str(eqn.params["name"])
        if kind_of(eqn.primitive.name) not in _PASSES_ON or len(eqn.invars) != 1:
            return ""
        atom = eqn.invars[0]
    return ""


def _behind(atom: Any, made_by: Mapping[Any, Any]) -> Any:
    """What a value is, names, roundings and barriers looked through."""
    while isinstance(atom, jex.Var) and (eqn := made_by.get(atom)) is not None:
        if eqn.primitive.name not in ("name", "reduce_precision", "copy", "copy_p", "optimization_barrier"):
            return atom
        atom = eqn.invars[eqn.outvars.index(atom) if len(eqn.outvars) > 1 else 0]
    return atom if isinstance(atom, jex.Var) else None


def _light_sources(atom: Any, made_by: Mapping[Any, Any]) -> int | None:
    """Bytes of what a value is made of by views and elementwise work; None where other work is in it."""
    sources: set[Any] = set()
    todo, visited = [atom], set()
    while todo:
        each = todo.pop()
        if not isinstance(each, jex.Var) or each in visited:
            continue
        visited.add(each)
        eqn = made_by.get(each)
        if eqn is None:
            sources.add(each)
        elif kind_of(eqn.primitive.name) in _CHEAP and not eqn.effects:
            todo.extend(eqn.invars)
        else:
            return None
    return sum(aval_bytes(v.aval) for v in sources) if atom not in sources else None


def _is_returned(context: LintContext, variable: Any) -> bool:
    """Whether an array of the outermost level is a result of the step, names looked through."""
    jaxpr = open_jaxpr(context.traced.stage.jaxpr)
    made = {v: eqn for eqn in jaxpr.eqns for v in eqn.outvars}
    return variable in {_behind(v, made) for v in jaxpr.outvars} | set(jaxpr.outvars)
