"""How each value of a step is split over the mesh, by the compiler's own propagation.

On automatic meshes the user says how some arrays are split, and XLA spreads that over the others long after tracing.
The pass that does it (Shardy) runs on the lowered program in a moment and without a compiler for the target: the step
is lowered once with all its values as results, propagated, and the results' splits are read. What the body of an open
loop makes is stacked for it, apart from the stack that another loop reads, which may be split as its reader wants it.
What stands in the open body of a `shard_map` is each device's own, and split no further. Nothing is compiled or run.
On explicit meshes types say it already.

It is what the partitioner starts from, not what it ends with: it may still change the split of what it finds better
placed, and it pads what does not divide.

Read after `close`. Complexity: one lowering of the step.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.core
import jax.extend.core as jex
from jax.sharding import AxisType, NamedSharding

from jaxckpt import _compat
from jaxckpt.ir.loop import STACK
from jaxckpt.outline.outline import closed_jaxpr
from jaxckpt.program.flat_program import Equation, FlatProgram, OpenLoop
from jaxckpt.program.inline import open_jaxpr
from jaxckpt.program.open_scan import IS_PROBE, PRIMITIVES, loop_paths
from jaxckpt.program.open_shard_map import is_local

ValueSharding = tuple[tuple[str, ...], ...]
"""For each dimension the mesh axes that it is split over; part of an axis is written "axis/4"."""

_PLATFORMS = ("cuda", "tpu", "cpu")
"""Tried in this order; a step may hold kernels that only one of them has."""


def propagate_shardings(
    program: FlatProgram, shardings: Sequence[Any], out_shardings: Sequence[Any]
) -> Mapping[Any, ValueSharding]:
    """How the values of a program are split.

    Args:
      program: One level deep.
      shardings: For each flat argument its sharding, or None.
      out_shardings: What is asked of each result, or None.

    Returns:
      By variable; what is whole on each device, or not known, is left out. Empty where there is no mesh, and where no
      platform can lower the step: then what types, arguments and constraints say is all that is known.
    """
    meshes = list(meshes_of(program, (*shardings, *out_shardings)))
    if all(mesh.size == 1 for mesh in meshes):
        return {}
    if all(kind == AxisType.Explicit for mesh in meshes for kind in mesh.axis_types):
        variables = (v for equation in program.equations for v in equation.eqn.outvars)
        return {v: found for v in (*program.invars, *variables) if any(found := split_of_type(v.aval))}
    stacks, shown = _stacked(program)
    results = list(shown.values())
    closed = closed_jaxpr(program, stacks, [*program.outvars, *results])
    lowered = _lowered(closed, program, shardings, out_shardings, len(results))
    if lowered is None:
        return {}
    arguments, made = _compat.propagated_splits(lowered, len(program.constants) + len(program.invars), len(results))
    known: dict[Any, ValueSharding] = {}
    known.update(zip((*(v for v, _ in program.constants), *program.invars), arguments, strict=True))
    for variable, split in zip(shown, made, strict=True):
        known[variable] = split[len(split) - len(variable.aval.shape) :] if split else ()
    found = {v: split[: len(v.aval.shape)] for v, split in known.items() if any(split)}
    return {**_of_constants(program, found), **found}


def _of_constants(program: FlatProgram, found: Mapping[Any, ValueSharding]) -> dict[Any, ValueSharding]:
    """What is made of no argument is split as its reader: the pass makes it anew for each, so for our result too."""
    fixed: set[Any] = set()
    for equation in program.equations:
        if fixed.issuperset(equation.variables()):
            fixed.update(equation.eqn.outvars)
    more: dict[Any, ValueSharding] = {}
    for equation in reversed(program.equations):
        result = equation.eqn.outvars[0] if equation.eqn.outvars else None
        split = found.get(result, more.get(result))
        for variable in equation.variables() if split else ():
            if variable in fixed and variable not in found and variable.aval.shape == result.aval.shape:
                more[variable] = split
    return more


def split_of_type(aval: Any) -> ValueSharding:
    """What a type says of its split, on an explicit mesh."""
    sharding = getattr(aval, "sharding", None)
    return split_of_sharding(sharding, len(aval.shape)) if isinstance(sharding, NamedSharding) else ()


def split_of_sharding(sharding: NamedSharding, rank: int) -> ValueSharding:
    """The axes of each dimension that a sharding names; () where it names none.

    Example:
      >>> from jax.sharding import AbstractMesh, PartitionSpec
      >>> mesh = AbstractMesh((2, 4), ("data", "model"))
      >>> split_of_sharding(NamedSharding(mesh, PartitionSpec(None, ("data", "model"))), 3)
      ((), ('data', 'model'), ())
    """
    parts = (*sharding.spec, *(None for _ in range(rank - len(sharding.spec))))[:rank]
    found = tuple(tuple(axis for axis in _axes(part) if isinstance(axis, str)) for part in parts)
    return found if any(found) else ()


def meshes_of(program: FlatProgram, shardings: Iterable[Any]) -> Iterator[Any]:
    """The meshes that shardings of arguments, constraints and types name, in this order."""
    equations = [equation.eqn for equation in program.equations]
    said = (
        *shardings,
        *(eqn.params.get("sharding") for eqn in equations),
        *(getattr(v.aval, "sharding", None) for v in program.invars),
    )
    for sharding in said:
        if isinstance(sharding, NamedSharding) and not sharding.mesh.empty:
            yield sharding.mesh
    yield from (eqn.params["mesh"] for eqn in equations if eqn.primitive.name == "shard_map")
    yield from (manual.mesh for manual in program.manuals)


def _axes(part: Any) -> tuple[Any, ...]:
    return part if isinstance(part, tuple) else (part,)


def _stacked(program: FlatProgram) -> tuple[list[Equation], dict[Any, Any]]:
    """The equations with a stack behind each loop for all that its body makes; for each value what shows it outside."""
    paths = loop_paths(program.loops)
    shown: dict[Any, Any] = {}
    inside: dict[int, list[Any]] = {}
    made: list[Equation] = []
    around: tuple[int, ...] = ()
    for equation in (*program.equations, None):
        path = () if equation is None or equation.loop is None else paths[equation.loop]
        for loop in reversed(around):
            if loop not in path:
                made += _stacks(loop, program.loops[loop], inside, shown)
        around = path
        if equation is None:
            break
        made.append(equation)
        for variable in () if is_local(equation) else filter(_is_array, equation.eqn.outvars):
            shown[variable] = variable
            if path:
                inside.setdefault(path[-1], []).append(variable)
    return made, shown


def _stacks(loop: int, opened: OpenLoop, inside: dict[int, list[Any]], shown: dict[Any, Any]) -> Iterator[Equation]:
    said = {"loop": loop, "length": opened.length, "reverse": opened.reverse, IS_PROBE: True}
    for variable in inside.pop(loop, []):
        stack = jex.Var(opened.stacked_aval(shown[variable].aval))
        yield Equation(
            opened.eqn.replace(
                primitive=PRIMITIVES[STACK],
                invars=[shown[variable]],
                outvars=[stack],
                params=said,
                effects=frozenset(),
            ),
            loop=opened.parent,
        )
        shown[variable] = stack
        if opened.parent is not None:
            inside.setdefault(opened.parent, []).append(variable)


def _is_array(variable: Any) -> bool:
    return isinstance(variable.aval, jax.core.ShapedArray)


def _lowered(
    closed: Any, program: FlatProgram, shardings: Sequence[Any], out_shardings: Sequence[Any], more: int
) -> jax.stages.Lowered | None:
    """The program lowered, its constants as arguments; None where no platform takes it."""
    captured = len(program.constants)

    def flat(*leaves: Any) -> Sequence[Any]:
        return tuple(jax.core.eval_jaxpr(open_jaxpr(closed), leaves[:captured], *leaves[captured:]))

    said = [*(getattr(array, "sharding", None) for _, array in program.constants), *shardings]
    variables = [*(v for v, _ in program.constants), *program.invars]
    specs = [_spec(v.aval, sharding) for v, sharding in zip(variables, said, strict=True)]
    asked = (*map(_over_mesh, out_shardings), *(None for _ in range(more)))
    traced = jax.jit(flat, keep_unused=True, out_shardings=asked).trace(*specs)
    for platform in _PLATFORMS:
        try:
            return traced.lower(lowering_platforms=(platform,))
        except (NotImplementedError, ValueError, TypeError, RuntimeError, KeyError):
            continue  # its kernels are another platform's
    return None


def _spec(aval: Any, sharding: Any) -> Any:
    if not isinstance(aval, jax.core.ShapedArray):
        return aval
    return jax.ShapeDtypeStruct(
        aval.shape, aval.dtype, sharding=_over_mesh(sharding), weak_type=getattr(aval, "weak_type", False)
    )


def _over_mesh(sharding: Any) -> NamedSharding | None:
    """A sharding over a mesh, in device memory; others are left to the compiler."""
    if not isinstance(sharding, NamedSharding) or sharding.mesh.size == 1:
        return None
    return NamedSharding(sharding.mesh, sharding.spec)
