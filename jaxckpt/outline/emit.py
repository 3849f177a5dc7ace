"""Scan and cond equations, from interfaces and the equations of bodies.

All branches of a cond take the same operands and give the same results. A branch has a variable of its own for an
operand that is another branch's slot, and gives zeros for slots that only other branches fill. Slots of one type are
shared, as JAX shares them (`interfaces`).
"""

from collections.abc import Sequence
from itertools import chain
from typing import TypeAlias

import jax.extend.core as jex

from jaxckpt import _compat
from jaxckpt.outline.interfaces import Cond, LoopInterface, zeros_like_aval
from jaxckpt.program.flat_program import Atom

BranchBody: TypeAlias = tuple[LoopInterface, Sequence[jex.JaxprEqn]]
"""The body of one branch: what it reads and gives, and its equations."""


def body_jaxpr(
    invars: Sequence[jex.Var], outvars: Sequence[Atom], eqns: Sequence[jex.JaxprEqn], template: jex.Jaxpr
) -> jex.Jaxpr:
    """An open jaxpr that says it comes from where another body came from."""
    return jex.Jaxpr(
        constvars=(),
        invars=invars,
        outvars=outvars,
        eqns=eqns,
        effects=frozenset().union(*(eqn.effects for eqn in eqns)),
        debug_info=jex.DebugInfo("jaxckpt", template.debug_info.func_src_info, None, None),
    )


def scan_eqn(interface: LoopInterface, eqns: Sequence[jex.JaxprEqn], template: jex.JaxprEqn) -> jex.JaxprEqn:
    """The scan equation of a loop."""
    constants, carries, slices, stacks = interface.constants, interface.carries, interface.slices, interface.stacks
    jaxpr = body_jaxpr(
        invars=[*constants, *(carry.current for carry in carries), *slices],
        outvars=[*(carry.following for carry in carries), *(value for value, _ in stacks)],
        eqns=eqns,
        template=template.params["jaxpr"],
    )
    sizes = map(len, (constants, carries, slices, stacks))
    return template.replace(
        invars=[*constants, *(carry.init for carry in carries), *slices.values()],
        outvars=[*(carry.final for carry in carries), *(stack for _, stack in stacks)],
        effects=jaxpr.effects,
        params=_compat.scan_params(template.params, jex.ClosedJaxpr(jaxpr, ()), *sizes),
    )


def cond_eqn(cond: Cond, bodies: Sequence[BranchBody], template: jex.JaxprEqn) -> jex.JaxprEqn:
    """The cond equation of some branches, in their order; `template` is the cond that they were."""
    interfaces = [interface for interface, _ in bodies]
    operands = list(dict.fromkeys(chain.from_iterable(map(_operands, interfaces))))
    slots = list(dict.fromkeys(slot for interface in interfaces for _, slot in interface.stacks))
    branches = []
    for position, (interface, eqns) in enumerate(bodies):
        own = _operands(interface)
        invars = [own.get(outer) or jex.Var(outer.aval) for outer in operands]
        results = [values[position] for _, values in cond.results]
        filling, filled = _slots(interface, slots, template)
        old = template.params["branches"][position]
        branches.append(jex.ClosedJaxpr(body_jaxpr(invars, [*results, *filled], [*eqns, *filling], old), ()))
    return template.replace(
        invars=[cond.index, *operands],
        outvars=[*(result for result, _ in cond.results), *slots],
        params=dict(template.params, branches=tuple(branches)),
        effects=frozenset().union(*(branch.effects for branch in branches)),
    )


def _operands(interface: LoopInterface) -> dict[Atom, jex.Var]:
    """The atoms that a branch reads from outside, each with its own variable."""
    return {**{v: v for v in interface.constants}, **{outer: own for own, outer in interface.slices.items()}}


def _slots(
    interface: LoopInterface, slots: Sequence[jex.Var], like: jex.JaxprEqn
) -> tuple[list[jex.JaxprEqn], list[Atom]]:
    """For each slot a branch's own value or zeros, and the equations of the zeros."""
    own = {slot: value for value, slot in interface.stacks}
    eqns: list[jex.JaxprEqn] = []
    values: list[Atom] = []
    for slot in slots:
        zeros_eqns, value = ([], own[slot]) if slot in own else zeros_like_aval(slot.aval, like)
        eqns += zeros_eqns
        values.append(value)
    return eqns, values
