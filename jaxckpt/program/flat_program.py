"""A traced step as one level of JAX equations: inlined, shortened by the other passes, then read into a graph.

Unlike `ir.Graph` it holds JAX's own equations and variables; unlike a jaxpr it knows which equations belong to the
user's own `jax.checkpoint`. Every pass of `jaxckpt.program` and `jaxckpt.trace` takes a `FlatProgram` and returns one.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import jax
import jax.core
import jax.extend.core as jex
from jax.extend.source_info_util import NameStack

from jaxckpt import _compat
from jaxckpt.ir.regions import FROM_SHARDS, LOOP_BOUNDARIES, TO_SHARDS, Branch
from jaxckpt.ir.scope import RECOMPUTED, TRANSPOSE, path_of_marks, policies_of_marks, repeated

AnyJaxpr: TypeAlias = jex.Jaxpr | jex.ClosedJaxpr
"""A body: an open jaxpr or a closed one; one class since jax 0.11."""
Atom: TypeAlias = jex.Var | jex.Literal
"""An operand or result of an equation."""
Params: TypeAlias = dict[str, Any]
"""Parameters of an equation."""
HOST_MEMORY = "pinned_host"
"""JAX's name for the host memory that devices read directly."""
AnyMesh: TypeAlias = jax.sharding.Mesh | jax.sharding.AbstractMesh
CondKey: TypeAlias = tuple[int, ...]
"""A name for a cond that stays the same when other conds are kept closed."""

_Name = TypeVar("_Name")
_PRIMITIVES = {name: jex.Primitive(name) for name in (*LOOP_BOUNDARIES, TO_SHARDS, FROM_SHARDS)}
"""Never bound and never lowered: `outline` closes a program with open bodies first."""


@dataclass(frozen=True, slots=True)
class Equation:
    """One equation of a program.

    Attributes:
      eqn: JAX's equation.
      in_user_remat: True if it is a clone that the user's own `jax.checkpoint` adds to the backward pass.
      loop: The innermost open loop whose body contains the equation, or None.
      is_pipelined: True if software pipelining shifts the equation by one iteration: it runs one iteration after what
        it reads, if the same body computes that, else one iteration before what reads it; see `outline`.
      manual: A position in `FlatProgram.manuals`: how devices run the body of the open `shard_map` that contains the
        equation, or that the equation leads into or out of. None outside.
    """

    eqn: jex.JaxprEqn
    in_user_remat: bool = False
    loop: int | None = None
    is_pipelined: bool = False
    manual: int | None = None

    @property
    def effects(self) -> jex.Effects:
        """JAX's effects of the equation; naming a mesh axis does not count as one."""
        return _compat.lasting_effects(self.eqn.effects) if self.eqn.effects else self.eqn.effects

    def variables(self) -> Iterator[jex.Var]:
        """The variables that the equation reads, in operand order, without literals."""
        return (atom for atom in self.eqn.invars if isinstance(atom, jex.Var))


def is_while(eqn: jex.JaxprEqn) -> bool:
    """True for a loop that ends when its condition says so."""
    return bool(eqn.primitive.name == "while")


@dataclass(frozen=True, slots=True, kw_only=True)
class CondBranch:
    """The part of a branch in its open cond, whose operand `index` selects the branch.

    `key` is the number of the cond within the enclosing branch, after the key and the position of that branch.
    """

    index: Atom
    branch: Branch
    key: CondKey


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLoop:
    """A loop, or a branch of a cond, whose body is inlined into a program.

    Attributes:
      eqn: The scan, while or cond that was opened, under its full name stack.
      parent: The loop whose body contains this one, or None.
      offset: For one of the loops that a loop was split into: its first slice of the arrays that all of them go through
        and stack into. None for a loop that is not split.
      is_inner_tile: True for the inner loop of a tiled one: it goes through, and stacks into, arrays of all iterations;
        its parent is the loop over tiles.
      is_clone: True if it is a copy of another loop and recomputes what that one computes.
      reads_iteration_number: True if each iteration reads its number from an array, so that no compiler knows it.
      delays_stacks: True if the arrays that it stacks into begin as copies of a value that is computed just before
        the loop, so that no compiler begins them earlier.
      manual: As `Equation.manual`.
      cond_branch: The cond of a branch; None for a loop.
    """

    eqn: jex.JaxprEqn
    parent: int | None
    offset: int | None = None
    is_inner_tile: bool = False
    is_clone: bool = False
    reads_iteration_number: bool = False
    delays_stacks: bool = False
    manual: int | None = None
    cond_branch: CondBranch | None = None

    @property
    def is_while(self) -> bool:
        """True for a loop whose trip count is not known."""
        return is_while(self.eqn)

    @property
    def length(self) -> int:
        """The trip count; 1 for a branch, and for a while."""
        return 1 if self.cond_branch is not None or self.is_while else int(self.eqn.params["length"])

    @property
    def reverse(self) -> bool:
        """True if the loop begins with the last slice."""
        return self.cond_branch is None and not self.is_while and bool(self.eqn.params["reverse"])

    def stacked_aval(self, aval: jax.core.AbstractValue) -> jax.core.AbstractValue:
        """The type that holds a value of every iteration: a stack for a loop, the value's own type for a branch."""
        return aval if self.cond_branch is not None else _compat.stacked_aval(self.length, aval)


@dataclass(frozen=True, slots=True, kw_only=True)
class ManualMesh:
    """How devices run bodies of `shard_map`, over which mesh, with which checks: as the first such `shard_map`."""

    eqn: jex.JaxprEqn

    @property
    def mesh(self) -> AnyMesh:
        """The mesh, all of whose axes are manual in a body."""
        return self.eqn.params["mesh"]

    @property
    def check_vma(self) -> bool:
        """True if types say over which axes a value varies."""
        return bool(self.eqn.params["check_vma"])

    @property
    def inner_ctx(self) -> Any:
        """The context of equations in a body."""
        return next((eqn.ctx for eqn in self.eqn.params["jaxpr"].eqns), self.eqn.ctx)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatProgram:
    """A step, one level deep; constants are variables with the arrays that the step closes over.

    The equations of the body of a loop or branch are neighbours. `manuals` say how devices run open bodies of
    `shard_map`.
    """

    invars: tuple[jex.Var, ...]
    constants: tuple[tuple[jex.Var, Any], ...]
    equations: tuple[Equation, ...]
    outvars: tuple[Atom, ...]
    effects: jex.Effects
    debug_info: jex.DebugInfo
    loops: tuple[OpenLoop, ...] = ()
    manuals: tuple[ManualMesh, ...] = ()

    def replace(self, **changes: Any) -> "FlatProgram":
        """The program with some fields changed."""
        return dataclasses.replace(self, **changes)


def open_jaxpr(jaxpr: AnyJaxpr) -> jex.Jaxpr:
    """The jaxpr itself, of a closed jaxpr or an open one; from jax 0.11 on they are the same."""
    return getattr(jaxpr, "jaxpr", jaxpr)


def constants_of(jaxpr: AnyJaxpr) -> Sequence[Any]:
    """The arrays of a closed jaxpr; none for an open one."""
    return getattr(jaxpr, "consts", ())


def array_spec(aval: jax.core.ShapedArray, sharding: jax.sharding.Sharding | None = None) -> jax.ShapeDtypeStruct:
    """The description of an argument of some type."""
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding, weak_type=getattr(aval, "weak_type", False))


def is_on_host(aval: jax.core.AbstractValue) -> bool:
    """True for the type of an array in host memory."""
    return getattr(aval, "memory_space", None) is jax.memory.Space.Host


def renamed(atom: Atom, names: Mapping[jex.Var, _Name]) -> Atom | _Name:
    """The atom that stands for another one: itself, unless it is a variable with another name."""
    return names.get(atom, atom) if isinstance(atom, jex.Var) else atom


def with_name_stack(eqn: jex.JaxprEqn, name_stack: NameStack) -> jex.JaxprEqn:
    """An equation under another name stack."""
    return eqn.replace(source_info=eqn.source_info.replace(name_stack=name_stack))


def scope_path(name_stack: NameStack) -> str:
    """The path of names around an equation, joined by "/", without marks of transformations; "" for no names."""
    return path_of_marks(_compat.name_stack_marks(name_stack))


def policy_digests(name_stack: NameStack) -> tuple[str, ...]:
    """The digests of the policies whose marks enclose an equation, outermost first."""
    return policies_of_marks(_compat.name_stack_marks(name_stack))


def without_repeats(name_stack: NameStack) -> NameStack:
    """The name stack without the entries that a transformation repeats; see `repeated`."""
    skipped = repeated(_compat.name_stack_marks(name_stack))
    return _compat.name_stack_without(name_stack, skipped) if skipped else name_stack


def without_recompute_marks(name_stack: NameStack) -> NameStack:
    """The name stack without the marks of recomputation."""
    marks = _compat.name_stack_marks(name_stack)
    skipped = frozenset(p for p, mark in enumerate(marks) if mark == (RECOMPUTED, False))
    return _compat.name_stack_without(name_stack, skipped) if skipped else name_stack


def forward_name_stack(name_stack: NameStack) -> NameStack:
    """The name stack of the forward equation that a backward one repeats: without its outermost transpose."""
    marks = _compat.name_stack_marks(name_stack)
    if TRANSPOSE not in marks:
        return name_stack
    return _compat.name_stack_without(name_stack, frozenset({marks.index(TRANSPOSE)}))


def boundary_eqn(
    body: jex.JaxprEqn, name: str, reads: Sequence[Atom], writes: Sequence[jex.Var], **params: Any
) -> jex.JaxprEqn:
    """An equation that takes values into or out of an open body, with the source of the equation of that body."""
    return body.replace(
        primitive=_PRIMITIVES[name], invars=list(reads), outvars=list(writes), params=params, effects=frozenset()
    )


def traced_eqns(
    function: Callable[..., jax.Array], reads: Sequence[Atom], result: Atom | None = None
) -> list[jex.JaxprEqn]:
    """The equations of a function over atoms, under new variables but for that of the `result`, if it is given."""
    jaxpr = open_jaxpr(jax.make_jaxpr(function)(*(atom.aval for atom in reads)))
    env: dict[jex.Var, Atom] = dict(zip(jaxpr.invars, reads, strict=True))
    if result is not None:
        env[jaxpr.outvars[0]] = result
    return [
        eqn.replace(
            invars=[renamed(atom, env) for atom in eqn.invars],
            outvars=[env.setdefault(variable, jex.Var(variable.aval)) for variable in eqn.outvars],
        )
        for eqn in jaxpr.eqns
    ]


def own_debug_info(jaxpr: jex.Jaxpr) -> jex.DebugInfo:
    """The debug information of a jaxpr of ours that comes from where another one came from."""
    return jex.DebugInfo("jaxckpt", jaxpr.debug_info.func_src_info, None, None)


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
        debug_info=own_debug_info(template),
        is_high=any(map(_compat.is_high, eqns)),
    )
