"""Inlining: nested calls become one level of equations, by building new equations rather than running anything.

1. Calls (`jit`, `closed_call`, `remat2`, ...) are replaced by the equations of their bodies, under fresh variables and
   the joined name stack.
2. Kernels, loops, branches, bodies of `shard_map` and custom derivatives that nobody differentiated stay closed, unless
   the caller asks to inline them.
3. Clones that a user's `jax.checkpoint` adds to the backward pass (JAX names their scope `rematted_computation`) are
   marked `in_user_remat`; `simplify` finds their originals.
4. A nested `jit` that asks for layouts stays closed; one that asks for shardings is inlined between sharding
   constraints.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.core
import jax.extend.core as jex
from jax.extend.source_info_util import NameStack

from jaxckpt import _compat
from jaxckpt.ir.regions import CARRY, END
from jaxckpt.ir.scope import is_recomputed
from jaxckpt.program.flat_program import (
    AnyJaxpr,
    Atom,
    CondKey,
    Equation,
    FlatProgram,
    array_spec,
    constants_of,
    is_while,
    open_jaxpr,
    own_debug_info,
    with_name_stack,
    without_recompute_marks,
    without_repeats,
)
from jaxckpt.program.open_loops import BodyOpener, can_open_cond, can_open_loop
from jaxckpt.program.open_shard_map import ShardMapOpener, can_open_shard_map

JITS = frozenset({"jit", "pjit"})
"""The names of `jax.jit`'s primitive over the years."""
CALLS = frozenset({"closed_call", "core_closed_call", "core_call", "call", "eval_jaxpr"})
"""Calls that ask for nothing but their body."""
CUSTOM_DERIVATIVES = frozenset({"custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"})
"""Calls with a derivative rule of their own."""
REMATS = frozenset({"remat2", "remat", "checkpoint"})
"""The names of `jax.checkpoint`'s primitive over the years."""

_Env = dict[jex.Var, Atom]


def inline(
    closed: AnyJaxpr,
    captured: Sequence[Any] = (),
    *,
    keep_user_remat: bool = False,
    inline_custom: bool = False,
    open_loops: bool = False,
    closed_conds: frozenset[CondKey] = frozenset(),
) -> FlatProgram:
    """Flattens a closed jaxpr, whose first arguments are those `captured`, to one level; drops nothing yet.

    `keep_user_remat` leaves `jax.checkpoint` of the user as it is instead of inlining and marking it. `inline_custom`
    inlines calls with custom derivatives too; the result must not be differentiated any more. `open_loops` opens the
    loops, the conds and the bodies of `shard_map` that belong to a gradient, but for `closed_conds`.
    """
    jaxpr = open_jaxpr(closed)
    inliner = _Inliner(
        keep_user_remat=keep_user_remat,
        inlined=JITS | CALLS | (CUSTOM_DERIVATIVES if inline_custom else frozenset()),
        open_loops=open_loops,
        closed_conds=closed_conds,
    )
    variables = [*jaxpr.constvars, *jaxpr.invars[: len(captured)]]
    inliner.adopt_constants(variables, [*constants_of(closed), *captured])
    outvars = tuple(inliner.inline_body(jaxpr, {}, stack=None))
    return FlatProgram(
        invars=tuple(jaxpr.invars[len(captured) :]),
        constants=tuple(inliner.constants.values()),
        equations=tuple(inliner.equations),
        outvars=outvars,
        effects=jaxpr.effects,
        debug_info=own_debug_info(jaxpr) if captured else jaxpr.debug_info,
        loops=tuple(inliner.opener.loops),
        manuals=tuple(inliner.shard_map_opener.manuals),
    )


def called_jaxpr(params: Mapping[str, Any]) -> AnyJaxpr | None:
    """The body that a call with these parameters runs, or None where it has none."""
    return next((params[name] for name in ("jaxpr", "call_jaxpr", "fun_jaxpr") if name in params), None)


class _Inliner:
    """Appends equations of all bodies, one after the other, to one list.

    `loop` and `manual` say in which open body the next equation is; `env` of a body gives the atoms of the program that
    its variables stand for, where they differ.
    """

    def __init__(
        self, *, keep_user_remat: bool, inlined: frozenset[str], open_loops: bool, closed_conds: frozenset[CondKey]
    ):
        self.keep_user_remat = keep_user_remat
        self.inlined = inlined if keep_user_remat else inlined | REMATS
        self.open_loops = open_loops
        self.opener = BodyOpener(closed_conds)
        self.shard_map_opener = ShardMapOpener()
        self.loop: int | None = None
        self.manual: int | None = None
        self.call: jex.JaxprEqn | None = None
        """The innermost call around the next equation that names a line of the user's code."""
        self.equations: list[Equation] = []
        self.constants: dict[int, tuple[jex.Var, Any]] = {}

    def adopt_constants(self, variables: Sequence[jex.Var], arrays: Sequence[Any]) -> None:
        """Takes over variables that hold constants; an array under two variables keeps both."""
        for variable, array in zip(variables, arrays, strict=True):
            key = id(array) if id(array) not in self.constants else id(variable)
            self.constants[key] = (variable, array)

    def inline_body(self, jaxpr: jex.Jaxpr, env: _Env, *, stack: NameStack | None) -> list[Atom]:
        """Appends the equations of a jaxpr under a name stack, None for the step itself; returns its results."""
        for eqn in jaxpr.eqns:
            reads = [self.outer_atom(v, env) for v in eqn.invars]
            own = eqn.source_info.name_stack
            if stack is None:
                self._inline_eqn(eqn, reads, env, stack=own, fresh=False)
            else:
                self._inline_eqn(eqn, reads, env, stack=stack + own, fresh=True)
        return [self.outer_atom(v, env) for v in jaxpr.outvars]

    def outer_atom(self, atom: Atom, env: _Env) -> Atom:
        """The program's atom for one of an inner jaxpr; arrays in literals become constants."""
        if isinstance(atom, jex.Var):
            return env.get(atom, atom)
        return self._constant(atom.val, atom.aval) if getattr(atom.aval, "shape", ()) else atom

    def _constant(self, array: Any, aval: jax.core.AbstractValue) -> Atom:
        """The variable of an array; a literal in the body of a `shard_map`, which cannot read the step's variables."""
        if self.manual is not None:
            return jex.Literal(array, aval)
        if id(array) not in self.constants:
            self.constants[id(array)] = (jex.Var(aval), array)
        return self.constants[id(array)][0]

    def _constants_env(self, closed: AnyJaxpr) -> _Env:
        variables = open_jaxpr(closed).constvars
        atoms = map(self._constant, constants_of(closed), (v.aval for v in variables))
        return dict(zip(variables, atoms, strict=False))

    def _inline_eqn(self, eqn: jex.JaxprEqn, reads: list[Atom], env: _Env, *, stack: NameStack, fresh: bool) -> None:
        if self.open_loops and can_open_loop(eqn, stack):
            open_loop = self._open_while if is_while(eqn) else self._open_scan
            open_loop(eqn, reads, env, stack=stack)
        elif self.open_loops and can_open_cond(eqn, reads, stack):
            self._open_cond(eqn, reads, env, stack=stack)
        elif self.open_loops and can_open_shard_map(eqn, stack):
            self._open_shard_map(eqn, reads, env, stack=stack)
        elif self._is_inlined(eqn) and (body := called_jaxpr(eqn.params)) is not None:
            self._inline_call(eqn, body, reads, env, stack=stack)
        else:
            self._append(eqn, reads, env, stack=stack, fresh=fresh)

    def _is_inlined(self, eqn: jex.JaxprEqn) -> bool:
        layouts = (layout for key in ("in_layouts", "out_layouts") for layout in eqn.params.get(key, ()))
        asks_for_layouts = eqn.primitive.name in JITS and any(layout is not None for layout in layouts)
        return eqn.primitive.name in self.inlined and not asks_for_layouts

    def _inline_call(
        self, eqn: jex.JaxprEqn, body: AnyJaxpr, reads: list[Atom], env: _Env, *, stack: NameStack
    ) -> None:
        inner, inner_env = open_jaxpr(body), self._constants_env(body)
        reads = self._constrained(reads, eqn.params.get("in_shardings", ()), stack=stack)
        inner_env.update(zip(inner.invars, reads, strict=True))
        is_remat = eqn.primitive.name in REMATS
        before, self.call = self.call, eqn if _compat.has_user_frame(eqn) else self.call
        results = self.inline_body(inner, inner_env, stack=self._remat_stack(stack) if is_remat else stack)
        self.call = before
        results = self._constrained(results, eqn.params.get("out_shardings", ()), stack=stack)
        env.update(zip(eqn.outvars, results, strict=True))

    def _remat_stack(self, stack: NameStack) -> NameStack:
        """The name stack of a checkpoint's body: a transposed checkpoint repeats its stack, from the loop around on."""
        if self.loop is None:
            return without_repeats(stack)
        around = self.opener.loops[self.loop].eqn.source_info.name_stack
        own = stack[len(around) :]
        half = len(own) // 2
        return stack[: len(around) + half] if half and own[:half] == own[half:] else without_repeats(stack)

    def _open_scan(self, eqn: jex.JaxprEqn, reads: list[Atom], env: _Env, *, stack: NameStack) -> None:
        """Replaces a scan by the equations of one iteration, between those that carry, slice and stack."""
        around, opener = self.loop, self.opener
        self.loop = loop = opener.begin(with_name_stack(eqn, stack), around, manual=self.manual)
        body = eqn.params["jaxpr"]
        inner, inner_env = open_jaxpr(body), self._constants_env(body)
        constants, carry, stacked = _compat.scan_operands(eqn.params, reads)
        of_constants, of_carry, of_stacked = _compat.scan_operands(eqn.params, inner.invars)
        # What the body carries on unchanged is no carry: the body reads the initial value, and so does the step.
        changed = [k for k, v in enumerate(of_carry) if inner.outvars[k] is not v]
        inner_env.update(zip(of_constants, constants, strict=True))
        inner_env.update(zip(of_carry, carry, strict=True))
        for index, k in enumerate(changed):
            current = jex.Var(of_carry[k].aval)
            inner_env[of_carry[k]] = self._join(opener.boundary(CARRY, loop, [carry[k]], [current], index=index))
        for variable, array in zip(of_stacked, stacked, strict=True):
            inner_env[variable] = self._join(opener.slice(loop, array, variable.aval))
        results = self.inline_body(inner, inner_env, stack=stack)
        self.loop = around
        last = {k: jex.Var(eqn.outvars[k].aval) for k in changed}
        env.update((eqn.outvars[k], last.get(k, init)) for k, init in enumerate(carry))
        self._join(opener.boundary(END, loop, [results[k] for k in changed], list(last.values())))
        for outer, value in zip(eqn.outvars[len(carry) :], results[len(carry) :], strict=True):
            env[outer] = stack = jex.Var(outer.aval)
            self._join(opener.stack(loop, value, stack))

    def _open_while(self, eqn: jex.JaxprEqn, reads: list[Atom], env: _Env, *, stack: NameStack) -> None:
        """Replaces a while by the equations of one iteration; what its condition reads besides joins the carry."""
        around, opener, body = self.loop, self.opener, eqn.params["body_jaxpr"]
        self.loop = loop = opener.begin(with_name_stack(eqn, stack), around, manual=self.manual)
        inner, inner_env = open_jaxpr(body), self._constants_env(body)
        of_condition, of_body = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
        tested, constants = reads[:of_condition], reads[of_condition : of_condition + of_body]
        carry = reads[of_condition + of_body :]
        avals = [*(atom.aval for atom in tested), *(variable.aval for variable in inner.invars[of_body:])]
        current = [jex.Var(aval) for aval in avals]
        for index, (initial, variable) in enumerate(zip([*tested, *carry], current, strict=True)):
            self._join(opener.boundary(CARRY, loop, [initial], [variable], index=index))
        inner_env.update(zip(inner.invars, [*constants, *current[of_condition:]], strict=True))
        results = self.inline_body(inner, inner_env, stack=stack)
        self.loop = around
        last = [jex.Var(aval) for aval in avals]
        self._join(opener.boundary(END, loop, [*current[:of_condition], *results], last))
        env.update(zip(eqn.outvars, last[of_condition:], strict=True))

    def _open_cond(self, eqn: jex.JaxprEqn, reads: list[Atom], env: _Env, *, stack: NameStack) -> None:
        """Replaces a cond by the equations of its branches, one branch after the other."""
        around, opener, (index, *operands) = self.loop, self.opener, reads
        loops = opener.begin_cond(with_name_stack(eqn, stack), index, around, manual=self.manual)
        if not loops:
            self._append(eqn, reads, env, stack=stack, fresh=True)
            return
        results: list[list[Atom]] = []
        for loop, branch in zip(loops, eqn.params["branches"], strict=True):
            inner, inner_env = open_jaxpr(branch), self._constants_env(branch)
            self.loop = loop
            inner_env.update(zip(inner.invars, (opener.inner_operand(loop, atom) for atom in operands), strict=True))
            results.append(self.inline_body(inner, inner_env, stack=opener.loops[loop].eqn.source_info.name_stack))
        self.loop = around
        for outer, *values in zip(eqn.outvars, *results, strict=True):
            env[outer] = self._join(opener.end(loops, index, values, jex.Var(outer.aval)))

    def _open_shard_map(self, eqn: jex.JaxprEqn, reads: list[Atom], env: _Env, *, stack: NameStack) -> None:
        """Replaces a `shard_map` by the equations that one device runs."""
        opener = self.shard_map_opener
        manual = opener.begin(with_name_stack(eqn, stack))
        inner = open_jaxpr(eqn.params["jaxpr"])
        inner_env: _Env = {}
        for variable, array, spec in zip(inner.invars, reads, eqn.params["in_specs"], strict=True):
            shard = opener.enter(manual, array, spec, variable.aval, self.loop)
            inner_env[variable] = self._join(self._named(shard, stack))
        self.manual = manual
        values = self.inline_body(inner, inner_env, stack=stack)
        self.manual = None
        for outer, value, spec in zip(eqn.outvars, values, eqn.params["out_specs"], strict=True):
            env[outer] = array = jex.Var(outer.aval)
            self._join(self._named(opener.leave(manual, value, spec, array, self.loop), stack))

    def _named(self, joined: Equation | Atom, stack: NameStack) -> Equation | Atom:
        """An equation of `open_shard_map` under a name stack, marked as the equations around it; atoms as they are."""
        if not isinstance(joined, Equation):
            return joined
        in_user_remat, stack = self._remat_mark(stack)
        joined = replace(joined, eqn=with_name_stack(joined.eqn, stack), in_user_remat=in_user_remat)
        self.opener.note(joined)
        return joined

    def _remat_mark(self, stack: NameStack) -> tuple[bool, NameStack]:
        """True under the user's own `jax.checkpoint`, if that is undone; and the name stack without its marks."""
        if self.keep_user_remat or not is_recomputed(_compat.name_stack_marks(stack)):
            return False, stack
        return True, without_repeats(without_recompute_marks(stack))

    def _join(self, joined: Equation | Atom) -> Any:
        """Appends an equation, and returns its first result if it has one; returns an atom as it is."""
        if not isinstance(joined, Equation):
            return joined
        self.equations.append(joined)
        return next(iter(joined.eqn.outvars), None)

    def _constrained(self, atoms: Sequence[Atom], shardings: Iterable[Any], *, stack: NameStack) -> list[Atom]:
        """The atoms behind sharding constraints, where a nested jit asks for shardings."""
        atoms = list(atoms)
        for position, sharding in enumerate(shardings):
            if _compat.is_specified_sharding(sharding):
                constraint = partial(jax.lax.with_sharding_constraint, shardings=sharding)
                jaxpr = open_jaxpr(jax.make_jaxpr(constraint)(array_spec(atoms[position].aval)))
                (atoms[position],) = self.inline_body(jaxpr, {jaxpr.invars[0]: atoms[position]}, stack=stack)
        return atoms

    def _append(self, eqn: jex.JaxprEqn, reads: list[Atom], env: _Env, *, stack: NameStack, fresh: bool) -> None:
        """Appends an equation as it is; `fresh` gives its results new variables, for a body may be inlined twice."""
        in_user_remat, stack = self._remat_mark(stack)
        for variable in eqn.outvars:
            if fresh or isinstance(variable, jex.DropVar):
                env[variable] = jex.Var(variable.aval)
        source = eqn if self.call is None or _compat.has_user_frame(eqn) else self.call
        eqn = eqn.replace(
            invars=reads,
            outvars=[env.get(v, v) for v in eqn.outvars],
            effects=_compat.retarget_effects(eqn.effects, lambda v: env.get(v, v)),
            source_info=source.source_info.replace(name_stack=stack),
        )
        self.equations.append(Equation(eqn, in_user_remat=in_user_remat, loop=self.loop, manual=self.manual))
        self.opener.note(self.equations[-1])
