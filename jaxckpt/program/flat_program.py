"""A traced step as one level of JAX equations: inlined, shortened by the other passes, then read into a graph.

Unlike `ir.Graph` it holds JAX's own equations and variables; unlike a jaxpr it knows which equations belong to the
user's own `jax.checkpoint`. Every pass of `jaxckpt.program` and `jaxckpt.trace` takes a `FlatProgram` and returns one.
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax.core
import jax.extend.core as jex

from jaxckpt import _compat
from jaxckpt.ir.regions import Branch

AnyJaxpr: TypeAlias = jex.Jaxpr | jex.ClosedJaxpr
"""A body: an open jaxpr or a closed one; one class since jax 0.11."""
Atom: TypeAlias = jex.Var | jex.Literal
"""An operand or result of an equation."""
CondKey: TypeAlias = tuple[int, ...]
"""A name for a cond that stays the same when other conds are kept closed."""


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
    def effects(self) -> Any:
        """JAX's effects of the equation; naming a mesh axis does not count as one."""
        return _compat.lasting_effects(self.eqn.effects) if self.eqn.effects else self.eqn.effects

    def variables(self) -> Iterator[jex.Var]:
        """The variables that the equation reads, in operand order, without literals."""
        return (atom for atom in self.eqn.invars if isinstance(atom, jex.Var))


@dataclass(frozen=True, slots=True, kw_only=True)
class CondBranch:
    """The part of a branch in its open cond.

    Attributes:
      index: The operand that selects the branch.
      branch: The position of this branch, and its cond.
      key: The key of the cond: its number within the enclosing branch, after the key and the position of that branch.
    """

    index: Atom
    branch: Branch
    key: CondKey


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLoop:
    """A loop, or a branch of a cond, whose body is inlined into a program.

    Attributes:
      eqn: The scan or cond that was opened, under its full name stack.
      parent: The loop whose body contains this one, or None.
      offset: For one of the loops that a loop was split into: its first slice of the arrays that all of them go through
        and stack into. None for a loop that is not split.
      is_inner_tile: True for the inner loop of a tiled one: it goes through, and stacks into, arrays of all iterations;
        its parent is the loop over tiles.
      is_clone: True if it is a copy of another loop and recomputes what that one computes.
      reads_iteration_number: True if each iteration reads its number from an array, so that no compiler knows it.
      manual: As `Equation.manual`.
      cond_branch: The cond of a branch; None for a loop.
    """

    eqn: jex.JaxprEqn
    parent: int | None
    offset: int | None = None
    is_inner_tile: bool = False
    is_clone: bool = False
    reads_iteration_number: bool = False
    manual: int | None = None
    cond_branch: CondBranch | None = None

    @property
    def length(self) -> int:
        """The trip count; 1 for a branch."""
        return 1 if self.cond_branch is not None else int(self.eqn.params["length"])

    @property
    def reverse(self) -> bool:
        """True if the loop begins with the last slice."""
        return self.cond_branch is None and bool(self.eqn.params["reverse"])

    def stacked_aval(self, aval: jax.core.AbstractValue) -> jax.core.AbstractValue:
        """The type that holds a value of every iteration: a stack for a loop, the value's own type for a branch."""
        return aval if self.cond_branch is not None else _compat.stacked_aval(self.length, aval)


@dataclass(frozen=True, slots=True, kw_only=True)
class ManualMesh:
    """How devices run bodies of `shard_map`: over which mesh, with which checks.

    Attributes:
      eqn: The first `shard_map` over this mesh with these checks.
    """

    eqn: jex.JaxprEqn

    @property
    def mesh(self) -> Any:
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
    """A step, one level deep.

    Attributes:
      invars: Variables of the flat arguments.
      constants: Variables of the arrays closed over, with the arrays.
      equations: In order.
      outvars: The results: variables or literals.
      effects: JAX's effects of the step.
      debug_info: JAX's names for arguments and results.
      loops: Open loops and branches; the equations of each body are neighbours.
      manuals: How devices run the open bodies of `shard_map`.
    """

    invars: tuple[jex.Var, ...]
    constants: tuple[tuple[jex.Var, Any], ...]
    equations: tuple[Equation, ...]
    outvars: tuple[Atom, ...]
    effects: Any
    debug_info: Any
    loops: tuple[OpenLoop, ...] = ()
    manuals: tuple[ManualMesh, ...] = ()

    def replace(self, **changes: Any) -> "FlatProgram":
        """The program with some fields changed."""
        return dataclasses.replace(self, **changes)
