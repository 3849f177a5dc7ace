"""Open branches become a cond equation again: what each of them reads, gives and leaves in slots.

All branches of a cond take the same operands and give the same results. A branch takes as its own variable what
another one's slot holds for it, and gives zeros for what only other branches leave. Slots of one type are shared: the
first value that a branch leaves of a type goes where the first one of another branch goes, as JAX shares them.

Read after `branches`; `close` asks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp

from jaxckpt.program.flat_program import JAXPRS, Atom


@dataclass(slots=True)
class Cond:
    """What goes into a cond and comes out of it, as it is found.

    Attributes:
      loops: Its branches, as loops, in their order.
      index: What says which branch runs.
      results: What comes behind it, each with a value of every branch.
      slots: For each type the slots of it.
    """

    loops: tuple[int, ...]
    index: Atom
    results: list[tuple[Any, Sequence[Atom]]] = field(default_factory=list)
    slots: dict[Any, list[Any]] = field(default_factory=dict)

    def slot(self, aval: Any, taken: Sequence[Any]) -> Any:
        """A slot of a type that a branch has not taken: one that exists, or a new one."""
        slots = self.slots.setdefault(aval, [])
        free = [slot for slot in slots if slot not in taken]
        if not free:
            slots.append(jex.Var(aval))
        return free[0] if free else slots[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchBody:
    """What is known of one branch when its cond is closed.

    Attributes:
      operands: What it reads from outside: its own variables, each with the one outside.
      eqns: JAX's equations of it.
      left: What it leaves: slots, each with the value.
    """

    operands: dict[Any, Atom]
    eqns: Sequence[Any]
    left: dict[Any, Atom]


def cond_eqn(cond: Cond, bodies: Sequence[BranchBody], template: Any) -> Any:
    """The cond equation of some branches.

    Args:
      cond: What goes in and comes out.
      bodies: Its branches, in their order.
      template: The cond that they were.
    """
    operands = list(dict.fromkeys(outer for body in bodies for outer in body.operands.values()))
    slots = list(dict.fromkeys(slot for body in bodies for slot in body.left))
    branches = []
    for position, body in enumerate(bodies):
        own = {outer: inner for inner, outer in body.operands.items()}
        after: list[Any] = []
        given = [values[position] for _, values in cond.results]
        for slot in slots:
            if slot in body.left:
                given.append(body.left[slot])
                continue
            eqns, zeros = zeros_like_aval(slot.aval, template)
            after += eqns
            given.append(zeros)
        debug_info = template.params["branches"][position].debug_info
        eqns = [*body.eqns, *after]
        jaxpr = jex.Jaxpr(
            constvars=(),
            invars=[own.get(outer) or jex.Var(outer.aval) for outer in operands],
            outvars=given,
            eqns=eqns,
            effects=frozenset().union(*(eqn.effects for eqn in eqns)),
            debug_info=jex.DebugInfo("jaxckpt", debug_info.func_src_info, None, None),
        )
        branches.append(JAXPRS[1](jaxpr, ()))
    return template.replace(
        invars=[cond.index, *operands],
        outvars=[*(result for result, _ in cond.results), *slots],
        params=dict(template.params, branches=tuple(branches)),
        effects=frozenset().union(*(branch.effects for branch in branches)),
    )


def zeros_like_aval(aval: Any, like: Any) -> tuple[list[Any], Atom]:
    """Zeros of some type, and the equations that make them; named like another equation."""
    sharding = None if aval.sharding.mesh.empty else aval.sharding

    def zeros() -> Any:
        if not jnp.issubdtype(aval.dtype, jax.dtypes.extended):
            return jax.lax.full(aval.shape, 0, aval.dtype, sharding=sharding)
        return jax.lax.full(aval.shape, jax.random.key(0, impl=str(jax.random.key_impl(aval))))

    closed = jax.make_jaxpr(zeros)()
    jaxpr = getattr(closed, "jaxpr", closed)
    eqns = [eqn.replace(source_info=like.source_info, ctx=like.ctx) for eqn in jaxpr.eqns]
    return eqns, jaxpr.outvars[0]
