"""Open bodies of `shard_map` become `shard_map` equations again: neighbouring equations of one mesh are a body.

What a body needs is found from what it reads: an array by the spec under which a device is shown its part, what another
body made as JAX hands residuals over, each device its own. What it gives is what `from_shards` reads, and what other
bodies read of it. So a body may be cut anywhere, and part of it may stand a second time elsewhere; the compiler sees
neither, for it puts the bodies of one program into one.

A value without dimensions has one on its way from body to body.

Read after `shards`; `close` calls it, which also closes the loops in a body. Complexity: linear.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.extend.core as jex

from jaxckpt import _compat
from jaxckpt.ir.shard_map import FROM_SHARDS, TO_SHARDS
from jaxckpt.program.flat_program import Atom, Equation, ManualMesh, OpenLoop
from jaxckpt.program.open_shard_map import all_devices_var


@dataclass(frozen=True, slots=True)
class _Operand:
    """How an array comes into a body, or goes out of it."""

    array: Atom
    spec: Any


@dataclass(slots=True)
class _Region:
    """Neighbouring equations of a body.

    Attributes:
      manual: How devices run them.
      loop: The loop around the `shard_map`, or None.
      within: The equations, those of loops in the body too.
      joins: Those that lead in and out.
      eqns: JAX's equations of the body.
      given: What goes out, each with the value that it is made of.
    """

    manual: int
    loop: int | None
    within: list[Equation] = field(default_factory=list)
    joins: list[Equation] = field(default_factory=list)
    eqns: list[Any] = field(default_factory=list)
    given: list[tuple[Atom, _Operand]] = field(default_factory=list)

    def made(self) -> Iterator[Any]:
        """What its equations make."""
        return (v for eqn in self.eqns for v in eqn.outvars)

    def wanted(self) -> Iterator[Any]:
        """What it reads and does not make, in order; a variable may come twice."""
        made = set(self.made())
        atoms = (atom for eqn in self.eqns for atom in eqn.invars)
        for atom in (*atoms, *(value for value, _ in self.given)):
            if isinstance(atom, jex.Var) and atom not in made:
                yield atom


def is_within(equation: Equation) -> bool:
    """Whether an equation stands in the body of a `shard_map`, and does not lead into it or out of it."""
    return equation.manual is not None and equation.eqn.primitive.name not in (TO_SHARDS, FROM_SHARDS)


def regions(
    equations: Sequence[Equation],
    loops: Sequence[OpenLoop],
    manuals: Sequence[ManualMesh],
    level: Callable[[Sequence[Equation]], Sequence[Any]],
) -> list[Equation]:
    """Closes the bodies of `shard_map`.

    Args:
      equations: In order; those in bodies among the others.
      loops: Of the program.
      manuals: Of the program.
      level: Makes JAX's equations of neighbouring ones of a body: closes the loops among them.

    Returns:
      Equations outside of all bodies.
    """
    found = _found(equations, loops)
    taken: dict[Any, _Operand] = {}
    for region in (each for each in found if isinstance(each, _Region)):
        region.eqns = list(level(region.within))
        for join in region.joins:
            (read,), (write,), spec = join.eqn.invars, join.eqn.outvars, join.eqn.params["spec"]
            if join.eqn.primitive.name == TO_SHARDS:
                taken[write] = _Operand(read, spec)
            else:
                region.given.append((read, _Operand(write, spec)))
    _hand_over([each for each in found if isinstance(each, _Region)], taken, manuals)
    return [
        Equation(_eqn(each, manuals[each.manual], taken), loop=each.loop) if isinstance(each, _Region) else each
        for each in found
        if isinstance(each, Equation) or each.given
    ]


def _found(equations: Sequence[Equation], loops: Sequence[OpenLoop]) -> list[Equation | _Region]:
    """Equations outside of bodies, and the regions between them. What leads out of a region leads into a later one."""
    found: list[Equation | _Region] = []
    for equation in equations:
        if equation.manual is None:
            found.append(equation)
            continue
        loop = equation.loop
        while loop is not None and loops[loop].manual is not None:
            loop = loops[loop].parent
        region = found[-1] if found else None
        enters = equation.eqn.primitive.name == TO_SHARDS
        if (
            not isinstance(region, _Region)
            or (region.manual, region.loop) != (equation.manual, loop)
            or (enters and any(equation.eqn.invars[0] is join.eqn.outvars[0] for join in region.joins))
        ):
            region = _Region(equation.manual, loop)
            found.append(region)
        (region.within if is_within(equation) else region.joins).append(equation)
    return found


def _hand_over(found: Sequence[_Region], taken: dict[Any, _Operand], manuals: Sequence[ManualMesh]) -> None:
    """Gives from region to region what one makes and another reads."""
    home = {v: region for region in found for v in region.made()}
    for region in found:
        for variable in region.wanted():
            if variable not in taken:
                array, spec = all_devices_var(manuals[region.manual], variable)
                taken[variable] = _Operand(array, spec)
                home[variable].given.append((variable, taken[variable]))


def _eqn(region: _Region, manual: ManualMesh, taken: dict[Any, _Operand]) -> Any:
    """The `shard_map` equation of a region."""
    operands = {v: taken[v] for v in region.wanted()}
    inside = _Inside(manual)
    invars = [inside.entered(variable, operand.array) for variable, operand in operands.items()]
    outvars = [inside.left(value, operand.array) for value, operand in region.given]
    named = [*region.eqns, *(join.eqn for join in region.joins)]
    stack = _common([eqn.source_info.name_stack for eqn in named])
    eqns = [*inside.before, *(_below(eqn, stack) for eqn in region.eqns), *inside.after]
    debug_info = jex.DebugInfo("jaxckpt", manual.eqn.params["jaxpr"].debug_info.func_src_info, None, None)
    jaxpr = jex.Jaxpr(
        constvars=(),
        invars=invars,
        outvars=outvars,
        eqns=eqns,
        effects=frozenset().union(*(eqn.effects for eqn in eqns)),
        debug_info=debug_info,
    )
    params = dict(
        manual.eqn.params,
        jaxpr=jaxpr,
        in_specs=tuple(operand.spec for operand in operands.values()),
        out_specs=tuple(operand.spec for _, operand in region.given),
    )
    return manual.eqn.replace(
        invars=[operand.array for operand in operands.values()],
        outvars=[operand.array for _, operand in region.given],
        params=params,
        source_info=named[0].source_info.replace(name_stack=stack),
    )


class _Inside:
    """What stands at the borders of one body: values without dimensions get one on their way."""

    def __init__(self, manual: ManualMesh):
        self.before: list[Any] = []
        self.after: list[Any] = []
        self._manual = manual

    def entered(self, variable: Any, array: Atom) -> Any:
        """The argument of the body that gives a variable."""
        if len(array.aval.shape) == len(variable.aval.shape):
            return variable
        long = jex.Var(_compat.stacked_aval(1, variable.aval))
        self.before.append(self._made(1, long, variable))
        return long

    def left(self, value: Atom, array: Atom) -> Atom:
        """What a body returns for a value."""
        if len(array.aval.shape) == len(value.aval.shape):
            return value
        long = jex.Var(_compat.stacked_aval(1, value.aval))
        self.after.append(self._made(0, value, long))
        return long

    def _made(self, rank: int, read: Atom, write: Any) -> Any:
        return _reshapes()[rank].replace(invars=[read], outvars=[write], ctx=self._manual.inner_ctx)


@functools.cache
def _reshapes() -> tuple[Any, Any]:
    """The equations that give a value a dimension and take it away, from the public functions."""
    made = (
        jax.make_jaxpr(lambda x: jax.lax.broadcast(x, (1,)))(jax.ShapeDtypeStruct((), "float32")),
        jax.make_jaxpr(lambda x: jax.lax.squeeze(x, (0,)))(jax.ShapeDtypeStruct((1,), "float32")),
    )
    one, other = (getattr(closed, "jaxpr", closed).eqns[0] for closed in made)
    return one, other


def _common(stacks: Sequence[Any]) -> Any:
    """The names that all equations have in common."""
    return stacks[0][: min(_compat.common_names(stacks[0], stack) for stack in stacks)]


def _below(eqn: Any, stack: Any) -> Any:
    """An equation under the names that a body's `shard_map` does not say."""
    own = eqn.source_info.name_stack[len(stack) :]
    return eqn.replace(source_info=eqn.source_info.replace(name_stack=own))
