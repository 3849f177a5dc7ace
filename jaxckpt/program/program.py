"""A traced step as one level of equations: what inlining makes, merging shortens and the graph is read from.

Unlike `ir.Graph` it holds JAX's own equations and variables; unlike a jaxpr it knows which equations the user's
own `jax.checkpoint` computes again. Every stage of `jaxckpt.trace` takes a `Program` and returns one.
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax.extend.core as jex

from jaxckpt import _compat
from jaxckpt.ir.branch import Branch

JAXPRS = (jex.Jaxpr, jex.ClosedJaxpr)  # pyright: ignore[reportPrivateImportUsage]  # one class since jax 0.11
"""The types of a body: an open jaxpr or a closed one."""
Atom = Any
"""A `jax.extend.core.Var` or `jax.extend.core.Literal`."""


@dataclass(frozen=True, slots=True)
class Equation:
    """One equation of a program.

    Attributes:
      eqn: JAX's equation.
      again: Whether it is part of what the user's `jax.checkpoint` computes again.
      loop: The innermost open loop whose body it stands in, or None.
      ahead: Whether it is run a turn later than what it reads, where that is made in the same body, or else a turn
        earlier than what reads it; see `close`.
      manual: The way in which devices run the body of the open `shard_map` that it stands in, leads into or out of, as
        a position in `Program.manuals`; or None.
    """

    eqn: Any
    again: bool = False
    loop: int | None = None
    ahead: bool = False
    manual: int | None = None

    @property
    def effects(self) -> Any:
        """What it does besides computing; to name an axis of the mesh is nothing of the kind."""
        return _compat.lasting_effects(self.eqn.effects) if self.eqn.effects else self.eqn.effects

    def variables(self) -> Iterator[Any]:
        """The variables that it reads, in operand order, literals left out."""
        return (atom for atom in self.eqn.invars if isinstance(atom, jex.Var))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """That a loop is a branch of an open cond.

    Attributes:
      index: What says which branch runs.
      branch: Which one this is.
      key: A name for the cond that is the same where others stay whole: its number in the branch around it, behind
        the key and the position of that.
    """

    index: Atom
    branch: Branch
    key: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLoop:
    """A loop or branch whose body stands open in a program.

    Attributes:
      eqn: The scan or cond that it was, under its whole name stack.
      parent: The loop whose body it stands in, or None.
      offset: Of a stretch of a loop the first slice, in arrays that the stretches go through and stack together; None
        for a whole loop.
      nested: Whether it is over the turns of a group, and the loop around it over the groups: it goes through arrays of
        all turns, and stacks into such.
      again: Whether it is a copy of another loop, and computes the same again.
      numbered: Whether each turn reads which one it is from an array, so that no compiler knows it ahead.
      manual: As `Equation.manual`.
      fork: Of which cond it is a branch, if it is no loop.
    """

    eqn: Any
    parent: int | None
    offset: int | None = None
    nested: bool = False
    again: bool = False
    numbered: bool = False
    manual: int | None = None
    fork: Fork | None = None

    @property
    def length(self) -> int:
        """How many turns it makes; a branch makes one."""
        return 1 if self.fork is not None else int(self.eqn.params["length"])

    @property
    def reverse(self) -> bool:
        """Whether it begins with the last slice."""
        return self.fork is None and bool(self.eqn.params["reverse"])

    def waiting(self, aval: Any) -> Any:
        """The type in which values of all turns wait: a stack of a loop, the slot of a branch."""
        return aval if self.fork is not None else _compat.stacked_aval(self.length, aval)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manual:
    """A way in which devices run bodies of `shard_map`: over which mesh, and what is checked of it.

    Attributes:
      eqn: The first `shard_map` that asks for it.
    """

    eqn: Any

    @property
    def mesh(self) -> Any:
        """The mesh, all of whose axes a body sees."""
        return self.eqn.params["mesh"]

    @property
    def check_vma(self) -> bool:
        """Whether types say over which axes a value differs."""
        return bool(self.eqn.params["check_vma"])

    @property
    def inner_ctx(self) -> Any:
        """The context of equations in a body."""
        return next((eqn.ctx for eqn in self.eqn.params["jaxpr"].eqns), self.eqn.ctx)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A step, one level deep.

    Attributes:
      invars: Variables of the flat arguments.
      constants: Variables of the arrays closed over, with the arrays.
      equations: In order.
      outvars: What it returns: variables or literals.
      effects: Of the whole step.
      debug_info: JAX's names for arguments and results.
      loops: Loops and branches whose bodies stand open among the equations; each body's equations are neighbours.
      manuals: How devices run the bodies of `shard_map` that stand open among the equations.
    """

    invars: tuple[Any, ...]
    constants: tuple[tuple[Any, Any], ...]
    equations: tuple[Equation, ...]
    outvars: tuple[Atom, ...]
    effects: Any
    debug_info: Any
    loops: tuple[OpenLoop, ...] = ()
    manuals: tuple[Manual, ...] = ()

    def replace(self, **changes: Any) -> "Program":
        """The program with some fields changed."""
        return dataclasses.replace(self, **changes)
