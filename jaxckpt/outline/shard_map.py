"""Outlining of `shard_map`: neighbouring equations of one mesh in open bodies become the body of one equation.

1. A body reads an array by the spec under which a device sees its part.
2. It reads what another body makes as JAX hands residuals over, each device its own; a value without dimensions has one
   on its way.
3. It gives what `from_shards` reads, and what other bodies read of it.

So a body may be cut anywhere, and part of it may be cloned elsewhere; the compiler sees neither, for it puts the bodies
of one program into one. Complexity: linear.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import jax
import jax.core
import jax.extend.core as jex
import jax.numpy as jnp
from jax.extend.source_info_util import NameStack
from jax.sharding import PartitionSpec

from jaxckpt import _compat
from jaxckpt.ir.regions import FROM_SHARDS, TO_SHARDS
from jaxckpt.program.flat_program import Atom, Equation, ManualMesh, OpenLoop, body_jaxpr, traced_eqns, with_name_stack
from jaxckpt.program.open_shard_map import all_devices_var


@dataclass(frozen=True, slots=True)
class _Operand:
    """An array outside of a body, and the spec by which the body reads or gives it."""

    array: Atom
    spec: PartitionSpec


@dataclass(slots=True)
class _Region:
    """Neighbouring equations of a body (`within`), those that lead in and out (`joins`), and its results (`given`)."""

    manual: int
    loop: int | None
    within: list[Equation] = field(default_factory=list)
    joins: list[Equation] = field(default_factory=list)
    eqns: list[jex.JaxprEqn] = field(default_factory=list)
    given: list[tuple[Atom, _Operand]] = field(default_factory=list)

    def produced(self) -> Iterator[jex.Var]:
        """The variables that its equations write."""
        return (v for eqn in self.eqns for v in eqn.outvars)

    def read(self) -> Iterator[jex.Var]:
        """The variables that it reads and does not produce, in order; a variable may come twice."""
        produced = set(self.produced())
        atoms = (atom for eqn in self.eqns for atom in eqn.invars)
        for atom in (*atoms, *(value for value, _ in self.given)):
            if isinstance(atom, jex.Var) and atom not in produced:
                yield atom


def is_within(equation: Equation) -> bool:
    """True if an equation is in the body of a `shard_map`, and does not lead into the body or out of it."""
    return equation.manual is not None and equation.eqn.primitive.name not in (TO_SHARDS, FROM_SHARDS)


def regions(
    equations: Sequence[Equation],
    loops: Sequence[OpenLoop],
    manuals: Sequence[ManualMesh],
    level: Callable[[Sequence[Equation]], Sequence[jex.JaxprEqn]],
) -> list[Equation]:
    """Outlines the bodies of `shard_map`, with `level` the loops in them; gives the equations outside of all bodies."""
    found = _found(equations, loops)
    bodies = [each for each in found if isinstance(each, _Region)]
    operands: dict[jex.Var, _Operand] = {}
    for region in bodies:
        region.eqns = list(level(region.within))
        operands.update(_joined(region))
    _hand_over(bodies, operands, manuals)
    return [
        Equation(_eqn(each, manuals[each.manual], operands), loop=each.loop) if isinstance(each, _Region) else each
        for each in found
        if isinstance(each, Equation) or each.given
    ]


def _found(equations: Sequence[Equation], loops: Sequence[OpenLoop]) -> list[Equation | _Region]:
    """Equations outside of bodies, and the regions between them, in order."""
    found: list[Equation | _Region] = []
    for equation in equations:
        if equation.manual is None:
            found.append(equation)
            continue
        loop = equation.loop
        while loop is not None and loops[loop].manual is not None:
            loop = loops[loop].parent
        region = found[-1] if found else None
        if not isinstance(region, _Region) or not _continues(region, equation, loop):
            region = _Region(equation.manual, loop)
            found.append(region)
        (region.within if is_within(equation) else region.joins).append(equation)
    return found


def _continues(region: _Region, equation: Equation, loop: int | None) -> bool:
    """True if an equation belongs to a region: a body cannot read an array that the same body gives."""
    enters = equation.eqn.primitive.name == TO_SHARDS
    if enters and any(equation.eqn.invars[0] is join.eqn.outvars[0] for join in region.joins):
        return False
    return (region.manual, region.loop) == (equation.manual, loop)


def _joined(region: _Region) -> dict[jex.Var, _Operand]:
    """The variables of a region that are parts of arrays; notes its results."""
    operands = {}
    for join in region.joins:
        (read,), (write,), spec = join.eqn.invars, join.eqn.outvars, join.eqn.params["spec"]
        if join.eqn.primitive.name == TO_SHARDS:
            operands[write] = _Operand(read, spec)
        else:
            region.given.append((read, _Operand(write, spec)))
    return operands


def _hand_over(bodies: Sequence[_Region], operands: dict[jex.Var, _Operand], manuals: Sequence[ManualMesh]) -> None:
    """Lets regions give what other regions read."""
    home = {v: region for region in bodies for v in region.produced()}
    for region in bodies:
        for variable in region.read():
            if variable not in operands:
                array, spec = all_devices_var(manuals[region.manual], variable)
                operands[variable] = _Operand(array, spec)
                home[variable].given.append((variable, operands[variable]))


def _eqn(region: _Region, manual: ManualMesh, known: dict[jex.Var, _Operand]) -> jex.JaxprEqn:
    operands = {v: known[v] for v in region.read()}
    named = [*region.eqns, *(join.eqn for join in region.joins)]
    stacks = [eqn.source_info.name_stack for eqn in named]
    stack = stacks[0][: min(_compat.common_names(stacks[0], each) for each in stacks)]
    params = dict(
        manual.eqn.params,
        jaxpr=_body(region, manual, operands, stack),
        in_specs=tuple(operand.spec for operand in operands.values()),
        out_specs=tuple(operand.spec for _, operand in region.given),
    )
    return manual.eqn.replace(
        invars=[operand.array for operand in operands.values()],
        outvars=[operand.array for _, operand in region.given],
        params=params,
        source_info=named[0].source_info.replace(name_stack=stack),
    )


def _body(region: _Region, manual: ManualMesh, operands: dict[jex.Var, _Operand], stack: NameStack) -> jex.Jaxpr:
    """The body of a region's equation, on whose border values without dimensions get one."""
    invars = [_on_border(variable, operand.array) for variable, operand in operands.items()]
    outvars = [_on_border(value, operand.array) for value, operand in region.given]
    entered = zip(invars, operands, strict=True)
    given = zip((value for value, _ in region.given), outvars, strict=True)
    before = [_reshape(1, row, variable, manual) for row, variable in entered if row is not variable]
    after = [_reshape(0, value, row, manual) for value, row in given if row is not value]
    within = [with_name_stack(eqn, eqn.source_info.name_stack[len(stack) :]) for eqn in region.eqns]
    return body_jaxpr(invars, outvars, [*before, *within, *after], manual.eqn.params["jaxpr"])


def _on_border(atom: Atom, array: Atom) -> Atom:
    """The atom itself, or a variable with one more dimension where the array outside has one more."""
    same = len(array.aval.shape) == len(atom.aval.shape)
    return atom if same else jex.Var(_compat.stacked_aval(1, atom.aval))


def _reshape(rank: int, read: Atom, write: Atom, manual: ManualMesh) -> jex.JaxprEqn:
    return _reshapes()[rank].replace(invars=[read], outvars=[write], ctx=manual.inner_ctx)


@functools.cache
def _reshapes() -> tuple[jex.JaxprEqn, jex.JaxprEqn]:
    """The equations that add a dimension to a scalar and remove it, from the public functions."""
    scalar, row = (jex.Var(jax.core.ShapedArray(shape, jnp.float32)) for shape in ((), (1,)))
    (added,) = traced_eqns(lambda x: jax.lax.broadcast(x, (1,)), [scalar])
    (removed,) = traced_eqns(lambda x: jax.lax.squeeze(x, (0,)), [row])
    return added, removed
