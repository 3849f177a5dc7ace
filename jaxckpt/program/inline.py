"""Nested calls become one level of equations, by building new equations rather than running anything.

Calls (`jit`, `closed_call`, `remat2`, ...) are replaced by the equations of their bodies, under fresh variables and
the joined name stack. Branches and kernels stay whole, and so do loops, bodies of `shard_map` and custom derivatives
that nobody differentiated, unless the caller asks for them. Equations that a user's `jax.checkpoint` recomputes (JAX
names their scope `rematted_computation`) are marked `in_user_remat`, for `cse`. A nested `jit` that asks for layouts
stays whole too; one that asks for shardings is inlined between the constraints that say the same.

"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.extend.core as jex

from jaxckpt import _compat
from jaxckpt.ir.scope import is_recomputed
from jaxckpt.program.flat_program import Atom, CondKey, Equation, FlatProgram
from jaxckpt.program.open_cond import CondOpener, can_open_cond
from jaxckpt.program.open_scan import LoopOpener, can_open_loop
from jaxckpt.program.open_shard_map import ShardMapOpener, can_open_shard_map
from jaxckpt.program.scope import without_recompute_marks, without_repeats

_JITS = frozenset({"jit", "pjit"})
_CALLS = frozenset({"closed_call", "core_closed_call", "core_call", "call", "eval_jaxpr"})
_CUSTOM = frozenset({"custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"})
REMATS = frozenset({"remat2", "remat", "checkpoint"})
"""The names of `jax.checkpoint`'s primitive over the years."""


def inline(
    closed: Any,
    captured: Sequence[Any] = (),
    *,
    keep_user_remat: bool = False,
    inline_custom: bool = False,
    open_loops: bool = False,
    closed_conds: frozenset[CondKey] = frozenset(),
) -> FlatProgram:
    """Flattens a closed jaxpr to one level.

    Args:
      closed: A closed jaxpr whose first arguments are those captured.
      captured: Arrays (or tracers) for these first arguments.
      keep_user_remat: Leaves `jax.checkpoint` of the user whole instead of inlining and marking it.
      inline_custom: Inlines calls with custom derivatives too; nobody can differentiate the result as meant any more.
      open_loops: Opens the loops, the conds and the bodies of `shard_map` that belong to a gradient; see `loops`,
        `branches` and `shards`.
      closed_conds: Keys of conds that are not opened.

    Returns:
      A program that computes the same; nothing is merged or dropped yet.
    """
    jaxpr = open_jaxpr(closed)
    inliner = _Inliner(
        keep_user_remat=keep_user_remat,
        entered=_CALLS | (_CUSTOM if inline_custom else frozenset()),
        opener=LoopOpener() if open_loops else None,
        closed_conds=closed_conds,
    )
    known = [*jaxpr.constvars, *jaxpr.invars[: len(captured)]]
    inliner.adopt(known, [*constants_of(closed), *captured])
    env: dict[Any, Atom] = {}
    inliner.walk(jaxpr, env, stack=None)
    return FlatProgram(
        invars=tuple(jaxpr.invars[len(captured) :]),
        constants=tuple(inliner.constants.values()),
        equations=tuple(inliner.equations),
        outvars=tuple(inliner.atom(v, env) for v in jaxpr.outvars),
        effects=jaxpr.effects,
        debug_info=_debug_info(jaxpr, len(captured)),
        loops=() if inliner.opener is None else tuple(inliner.opener.loops),
        manuals=tuple(inliner.shards.manuals),
    )


def open_jaxpr(jaxpr: Any) -> Any:
    """The jaxpr itself, of a closed jaxpr or an open one; from jax 0.11 on they are the same."""
    return getattr(jaxpr, "jaxpr", jaxpr)


def constants_of(jaxpr: Any) -> Sequence[Any]:
    """The arrays that hang on a jaxpr; none on an open one."""
    return getattr(jaxpr, "consts", ())


def _debug_info(jaxpr: Any, captured: int) -> Any:
    if not captured:
        return jaxpr.debug_info
    return jex.DebugInfo("jaxckpt", jaxpr.debug_info.func_src_info, None, None)


class _Inliner:
    def __init__(
        self,
        *,
        keep_user_remat: bool,
        entered: frozenset[str],
        opener: LoopOpener | None,
        closed_conds: frozenset[CondKey],
    ):
        self.keep_user_remat = keep_user_remat
        self.entered = entered
        self.opener = opener
        self.forker = None if opener is None else CondOpener(opener, closed_conds)
        self.shards = ShardMapOpener()
        self.loop: int | None = None
        self.manual: int | None = None
        self.equations: list[Equation] = []
        self.constants: dict[int, tuple[Any, Any]] = {}

    def adopt(self, variables: Sequence[Any], arrays: Sequence[Any]) -> None:
        """Makes variables that exist the constants' own; an array under two variables keeps both."""
        for variable, array in zip(variables, arrays, strict=True):
            key = id(array) if id(array) not in self.constants else id(variable)
            self.constants[key] = (variable, array)

    def walk(self, jaxpr: Any, env: dict[Any, Atom], *, stack: Any) -> None:
        """Appends the equations of a jaxpr; `env` gives the outer atoms of its variables, where they differ."""
        for eqn in jaxpr.eqns:
            reads = [self.atom(v, env) for v in eqn.invars]
            own = eqn.source_info.name_stack
            here = own if stack is None else stack + own
            body = self._body(eqn)
            if self.opener is not None and can_open_loop(eqn, here):
                self._turn(self.opener, eqn, reads, env, stack=here)
            elif self.forker is not None and can_open_cond(eqn, reads, here):
                self._fork(self.forker, eqn, reads, env, stack=here)
            elif self.opener is not None and can_open_shard_map(eqn, here):
                self._spread(eqn, reads, env, stack=here)
            elif body is None:
                self._append(eqn, reads, env, stack=here, fresh=stack is not None)
            else:
                self._enter(eqn, body, reads, env, stack=here)

    def atom(self, atom: Atom, env: dict[Any, Atom]) -> Atom:
        """What a variable or literal of an inner jaxpr is outside; arrays in literals become constants."""
        if isinstance(atom, jex.Var):
            return env.get(atom, atom)
        return self._constant(atom.val, atom.aval) if getattr(atom.aval, "shape", ()) else atom

    def _constant(self, array: Any, aval: Any) -> Any:
        """The variable of an array; in the body of a `shard_map`, where those of the step are not seen, a literal."""
        if self.manual is not None:
            return jex.Literal(array, aval)
        if id(array) not in self.constants:
            self.constants[id(array)] = (jex.Var(aval), array)
        return self.constants[id(array)][0]

    def _body(self, eqn: Any) -> Any:
        """The jaxpr to put in the place of an equation, or None where it stays."""
        name = eqn.primitive.name
        if name in _JITS and _wants_layouts(eqn.params):
            return None
        if name in _JITS or name in self.entered or (name in REMATS and not self.keep_user_remat):
            return eqn.params["jaxpr"] if "jaxpr" in eqn.params else eqn.params["call_jaxpr"]
        return None

    def _enter(self, eqn: Any, body: Any, reads: list[Atom], env: dict[Any, Atom], *, stack: Any) -> None:
        inner = open_jaxpr(body)
        constants = map(self._constant, constants_of(body), (v.aval for v in inner.constvars))
        reads = self._constrained(reads, eqn.params.get("in_shardings", ()), stack=stack)
        inner_env = dict(zip(inner.constvars, constants, strict=False))
        inner_env.update(zip(inner.invars, reads, strict=True))
        self.walk(inner, inner_env, stack=self._said_once(stack) if eqn.primitive.name in REMATS else stack)
        results = [self.atom(v, inner_env) for v in inner.outvars]
        results = self._constrained(results, eqn.params.get("out_shardings", ()), stack=stack)
        env.update(zip(eqn.outvars, results, strict=True))

    def _said_once(self, stack: Any) -> Any:
        """The name stack of a checkpoint without repetition; in the body of a loop the marks around stand outside."""
        if self.opener is None or self.loop is None:
            return without_repeats(stack)
        around = self.opener.loops[self.loop].eqn.source_info.name_stack
        own = stack[len(around) :]
        half = len(own) // 2
        return stack[: len(around) + half] if half and own[:half] == own[half:] else without_repeats(stack)

    def _turn(self, opener: LoopOpener, eqn: Any, reads: list[Atom], env: dict[Any, Atom], *, stack: Any) -> None:
        """Opens a loop: one turn of it stands in its place."""
        around = self.loop
        scan = eqn.replace(source_info=eqn.source_info.replace(name_stack=stack))
        self.loop = loop = opener.begin(scan, around, manual=self.manual)
        inner = open_jaxpr(eqn.params["jaxpr"])
        constants, carry, stacked = _compat.scan_operands(eqn.params, reads)
        of_constants, of_carry, of_stacked = _compat.scan_operands(eqn.params, inner.invars)
        captured = map(self._constant, constants_of(eqn.params["jaxpr"]), (v.aval for v in inner.constvars))
        inner_env = dict(zip(inner.constvars, captured, strict=False))
        inner_env.update(zip(of_constants, constants, strict=True))
        turning = [k for k, v in enumerate(of_carry) if inner.outvars[k] is not v]
        inner_env.update((v, init) for v, init in zip(of_carry, carry, strict=True))
        for index, k in enumerate(turning):
            inner_env[of_carry[k]] = self._join(opener.carry(loop, index, carry[k], of_carry[k].aval))
        for variable, array in zip(of_stacked, stacked, strict=True):
            inner_env[variable] = self._join(opener.slice(loop, array, variable.aval))
        self.walk(inner, inner_env, stack=stack)
        results = [self.atom(v, inner_env) for v in inner.outvars]
        self.loop = around
        env.update((eqn.outvars[k], carry[k]) for k in range(len(carry)))
        env.update((eqn.outvars[k], jex.Var(eqn.outvars[k].aval)) for k in turning)
        self._join(opener.end(loop, [results[k] for k in turning], [env[eqn.outvars[k]] for k in turning]))
        for outer, value in zip(eqn.outvars[len(carry) :], results[len(carry) :], strict=True):
            env[outer] = jex.Var(outer.aval)
            self._join(opener.stack(loop, value, env[outer]))

    def _fork(self, forker: CondOpener, eqn: Any, reads: list[Atom], env: dict[Any, Atom], *, stack: Any) -> None:
        """Opens a cond: its branches stand in its place, one after the other."""
        around, (index, *operands) = self.loop, reads
        named = eqn.replace(source_info=eqn.source_info.replace(name_stack=stack))
        loops = forker.begin(named, index, around, manual=self.manual)
        if not loops:
            self._append(eqn, reads, env, stack=stack, fresh=True)
            return
        made: list[list[Atom]] = []
        for loop, branch in zip(loops, eqn.params["branches"], strict=True):
            inner, self.loop = open_jaxpr(branch), loop
            captured = map(self._constant, constants_of(branch), (v.aval for v in inner.constvars))
            inner_env = dict(zip(inner.constvars, captured, strict=False))
            inner_env.update(zip(inner.invars, (forker.inside(loop, atom) for atom in operands), strict=True))
            self.walk(inner, inner_env, stack=forker.name_stack(loop))
            made.append([self.atom(v, inner_env) for v in inner.outvars])
        self.loop = around
        for outer, *values in zip(eqn.outvars, *made, strict=True):
            env[outer] = jex.Var(outer.aval)
            env[outer] = self._join(forker.end(loops, index, values, env[outer]))

    def _spread(self, eqn: Any, reads: list[Atom], env: dict[Any, Atom], *, stack: Any) -> None:
        """Opens the body of a `shard_map`: what one device does stands in its place."""
        named = eqn.replace(source_info=eqn.source_info.replace(name_stack=stack))
        manual = self.shards.begin(named)
        inner, specs = open_jaxpr(eqn.params["jaxpr"]), (eqn.params["in_specs"], eqn.params["out_specs"])
        inner_env: dict[Any, Atom] = {}
        for variable, array, spec in zip(inner.invars, reads, specs[0], strict=True):
            entered = self.shards.enter(manual, array, spec, variable.aval, self.loop)
            inner_env[variable] = self._join(self._named(entered, stack))
        self.manual = manual
        self.walk(inner, inner_env, stack=stack)
        values = [self.atom(v, inner_env) for v in inner.outvars]
        self.manual = None
        for outer, value, spec in zip(eqn.outvars, values, specs[1], strict=True):
            env[outer] = jex.Var(outer.aval)
            self._join(self._named(self.shards.leave(manual, value, spec, env[outer], self.loop), stack))

    def _named(self, joined: Equation | Atom, stack: Any) -> Equation | Atom:
        """An equation of ours under a name stack, if it is one, and marked as what it is there."""
        if not isinstance(joined, Equation):
            return joined
        in_user_remat = not self.keep_user_remat and _is_marked_again(stack)
        info = joined.eqn.source_info.replace(
            name_stack=without_repeats(without_recompute_marks(stack)) if in_user_remat else stack
        )
        joined = replace(joined, eqn=joined.eqn.replace(source_info=info), in_user_remat=in_user_remat)
        if self.opener is not None:
            self.opener.note(joined)
        return joined

    def _join(self, joined: Equation | Atom) -> Atom:
        """Appends an equation of ours, if it is one; what it makes, or the atom itself."""
        if not isinstance(joined, Equation):
            return joined
        self.equations.append(joined)
        return next(iter(joined.eqn.outvars), None)

    def _constrained(self, atoms: list[Atom], shardings: Sequence[Any], *, stack: Any) -> list[Atom]:
        """The atoms behind sharding constraints, where a nested jit asks for shardings."""
        atoms = list(atoms)
        for position, sharding in enumerate(shardings):
            if _compat.is_specified_sharding(sharding):
                atoms[position] = self._constraint(atoms[position], sharding, stack=stack)
        return atoms

    def _constraint(self, atom: Atom, sharding: Any, *, stack: Any) -> Atom:
        spec = jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype, weak_type=getattr(atom.aval, "weak_type", False))
        closed = jax.make_jaxpr(lambda x: jax.lax.with_sharding_constraint(x, sharding))(spec)
        jaxpr = open_jaxpr(closed)
        env = {jaxpr.invars[0]: atom}
        self.walk(jaxpr, env, stack=stack)
        return self.atom(jaxpr.outvars[0], env)

    def _append(self, eqn: Any, reads: list[Atom], env: dict[Any, Atom], *, stack: Any, fresh: bool) -> None:
        in_user_remat = not self.keep_user_remat and _is_marked_again(stack)
        if in_user_remat:
            stack = without_repeats(without_recompute_marks(stack))
        for variable in eqn.outvars:
            if fresh or isinstance(variable, jex.DropVar):
                env[variable] = jex.Var(variable.aval)
        self.equations.append(
            Equation(
                eqn.replace(
                    invars=reads,
                    outvars=[env.get(v, v) for v in eqn.outvars],
                    effects=_compat.retarget_effects(eqn.effects, lambda v: env.get(v, v)),
                    source_info=eqn.source_info.replace(name_stack=stack),
                ),
                in_user_remat,
                self.loop,
                manual=self.manual,
            )
        )
        if self.opener is not None and self.forker is not None:
            self.opener.note(self.equations[-1])
            self.forker.note(self.equations[-1])


def _wants_layouts(params: dict[str, Any]) -> bool:
    return any(layout is not None for key in ("in_layouts", "out_layouts") for layout in params.get(key, ()))


def _is_marked_again(stack: Any) -> bool:
    return is_recomputed(_compat.name_stack_marks(stack))
