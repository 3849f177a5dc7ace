"""Shardings of a step's values over the mesh (SPMD sharding propagation), and their bytes on one device.

On automatic meshes XLA's partitioner propagates the shardings that the user gives some arrays to the others, long after
tracing. Its pass for that (Shardy) runs on the lowered program, without a compiler for the target:

1. The step is lowered once with all its values as results, propagated, and the shardings of the results are read.
   Nothing is compiled or run.
2. Values in the body of an open loop are stacked for it, apart from the stack that another loop reads, which may be
   sharded as its reader wants it.
3. Values in the open body of a `shard_map` are each device's own, and sharded no further.

On explicit meshes types carry the shardings. The partitioner may still change a sharding and pads what does not divide.
Key arrays count as the words that they are made of. Complexity: one lowering of the step.
"""

import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import jax
import jax.core
import jax.extend.core as jex
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, Sharding

from jaxckpt import _compat
from jaxckpt.ir.regions import STACK
from jaxckpt.outline.outline import closed_jaxpr
from jaxckpt.program.flat_program import AnyMesh, Equation, FlatProgram, OpenLoop, array_spec, boundary_eqn, open_jaxpr
from jaxckpt.program.open_loops import IS_PROBE, Visibility
from jaxckpt.program.open_shard_map import ValueSharding, is_local, split_of

_PLATFORMS = ("cuda", "tpu", "cpu")
"""Tried in this order; a step may contain kernels that only one of them has."""


def propagate_shardings(
    program: FlatProgram, shardings: Sequence[Sharding | None], out_shardings: Sequence[Sharding | None]
) -> Mapping[jex.Var, ValueSharding]:
    """The shardings of a program's values; those that are replicated, or unknown, are left out.

    Empty where there is no mesh, and where no platform can lower the step: then only types, arguments and constraints
    say how values are sharded.
    """
    meshes = list(meshes_of(program, (*shardings, *out_shardings)))
    if all(mesh.size == 1 for mesh in meshes):
        return {}
    if all(kind == AxisType.Explicit for mesh in meshes for kind in mesh.axis_types):
        variables = (*program.invars, *(v for equation in program.equations for v in equation.eqn.outvars))
        return {v: split for v in variables if (split := _split_of_type(v.aval))}
    found = _propagated(program, shardings, out_shardings)
    return {**_of_constants(program, found), **found}


def _propagated(
    program: FlatProgram, shardings: Sequence[Sharding | None], out_shardings: Sequence[Sharding | None]
) -> dict[jex.Var, ValueSharding]:
    equations, probes = _with_probes(program)
    results = list(probes.values())
    closed = closed_jaxpr(program, equations, [*program.outvars, *results])
    arguments = [*(v for v, _ in program.constants), *program.invars]
    captured = len(program.constants)

    def flat(*leaves: jax.Array) -> Sequence[jax.Array]:
        return tuple(jax.core.eval_jaxpr(open_jaxpr(closed), leaves[:captured], *leaves[captured:]))

    of_arguments = [*(getattr(array, "sharding", None) for _, array in program.constants), *shardings]
    specs = [
        array_spec(v.aval, _over_mesh(sharding)) if _is_array(v) else v.aval
        for v, sharding in zip(arguments, of_arguments, strict=True)
    ]
    of_results = (*map(_over_mesh, out_shardings), *(None for _ in results))
    lowered = _lowered(jax.jit(flat, keep_unused=True, out_shardings=of_results).trace(*specs))
    if lowered is None:
        return {}
    found, of_probes = _compat.propagated_splits(lowered, len(arguments), len(results))
    splits = dict(zip(arguments, found, strict=True))
    for variable, split in zip(probes, of_probes, strict=True):
        splits[variable] = split[len(split) - len(variable.aval.shape) :]
    return {v: split[: len(v.aval.shape)] for v, split in splits.items() if any(split)}


def _lowered(traced: jax.stages.Traced) -> jax.stages.Lowered | None:
    """A program lowered, its constants as arguments; None where no platform takes it."""
    for platform in _PLATFORMS:
        try:
            return traced.lower(lowering_platforms=(platform,))
        except (NotImplementedError, ValueError, TypeError, RuntimeError, KeyError):
            continue  # its kernels are another platform's
    return None


def _of_constants(program: FlatProgram, found: Mapping[jex.Var, ValueSharding]) -> dict[jex.Var, ValueSharding]:
    """Values made of no argument take their reader's sharding: the pass clones them for each reader and probe."""
    fixed: set[jex.Var] = set()
    for equation in program.equations:
        if fixed.issuperset(equation.variables()):
            fixed.update(equation.eqn.outvars)
    more: dict[jex.Var, ValueSharding] = {}
    for equation in reversed(program.equations):
        for result in equation.eqn.outvars[:1]:
            split = found.get(result, more.get(result, ()))
            for variable in equation.variables() if split else ():
                if variable in fixed and variable not in found and variable.aval.shape == result.aval.shape:
                    more[variable] = split
    return more


def _split_of_type(aval: jax.core.AbstractValue) -> ValueSharding:
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
    found = split_of(sharding.spec, rank)[:rank]
    return found if any(found) else ()


def meshes_of(program: FlatProgram, shardings: Iterable[Sharding | None]) -> Iterator[AnyMesh]:
    """The meshes that shardings of arguments, constraints and types name, in this order."""
    equations = [equation.eqn for equation in program.equations]
    named = (
        *shardings,
        *(eqn.params.get("sharding") for eqn in equations),
        *(getattr(v.aval, "sharding", None) for v in program.invars),
    )
    for sharding in named:
        if isinstance(sharding, NamedSharding) and not sharding.mesh.empty:
            yield sharding.mesh
    yield from (eqn.params["mesh"] for eqn in equations if eqn.primitive.name == "shard_map")
    yield from (manual.mesh for manual in program.manuals)


def _with_probes(program: FlatProgram) -> tuple[list[Equation], dict[jex.Var, jex.Var]]:
    """The equations, with a stack after each loop of every value in its body; and for each value its probe.

    A probe is a variable of the outermost level: the value itself, or the stack of it.
    """
    visibility = Visibility(program.loops)
    probes: dict[jex.Var, jex.Var] = {}
    inside: dict[int, list[jex.Var]] = {}
    equations: list[Equation] = []
    around: tuple[int, ...] = ()
    for equation in (*program.equations, None):
        path = () if equation is None else visibility.path(equation.loop)
        for loop in reversed(around):
            if loop not in path:
                equations += _stacks(loop, program.loops[loop], inside, probes)
        around = path
        if equation is None:
            break
        equations.append(equation)
        for variable in () if is_local(equation) else filter(_is_array, equation.eqn.outvars):
            probes[variable] = variable
            if path:
                inside.setdefault(path[-1], []).append(variable)
    return equations, probes


def _stacks(
    loop: int, opened: OpenLoop, inside: dict[int, list[jex.Var]], probes: dict[jex.Var, jex.Var]
) -> Iterator[Equation]:
    params = {"loop": loop, "length": opened.length, "reverse": opened.reverse, IS_PROBE: True}
    for variable in inside.pop(loop, []):
        stack = jex.Var(opened.stacked_aval(probes[variable].aval))
        yield Equation(boundary_eqn(opened.eqn, STACK, [probes[variable]], [stack], **params), loop=opened.parent)
        probes[variable] = stack
        if opened.parent is not None:
            inside.setdefault(opened.parent, []).append(variable)


def _is_array(variable: jex.Var) -> bool:
    return isinstance(variable.aval, jax.core.ShapedArray)


def _over_mesh(sharding: Sharding | None) -> NamedSharding | None:
    """A sharding over a mesh, in device memory; others are left to the compiler."""
    if not isinstance(sharding, NamedSharding) or sharding.mesh.size == 1:
        return None
    return NamedSharding(sharding.mesh, sharding.spec)


def aval_bytes(aval: jax.core.AbstractValue | jax.ShapeDtypeStruct, sharding: Sharding | None = None) -> int:
    """Bytes on one device of an abstract array, or of a reference to one; 0 for tokens."""
    aval = getattr(aval, "inner_aval", aval)
    if not hasattr(aval, "shape"):
        return 0
    sharding = sharding if sharding is not None else getattr(aval, "sharding", None)
    return -(-math.prod(_shard_shape(aval.shape, sharding)) * dtype_bits(aval.dtype) // 8)


def split_bytes(aval: jax.core.ShapedArray | jax.ShapeDtypeStruct, ways: Sequence[int]) -> int:
    """Bytes of an array on one device, its dimensions split over so many devices each; padded, as the compiler does.

    Example:
      >>> split_bytes(jax.ShapeDtypeStruct((5, 8), "float32"), (2, 4))
      24
    """
    shard = (-(-size // parts) for size, parts in zip(aval.shape, ways, strict=True))
    return -(-math.prod(shard) * dtype_bits(aval.dtype) // 8)


def _shard_shape(shape: tuple[int, ...], sharding: Sharding | None) -> tuple[int, ...]:
    """The largest shard; dimensions that do not divide are padded, as the compiler does."""
    if not isinstance(sharding, NamedSharding):
        return tuple(sharding.shard_shape(shape)) if sharding is not None else shape
    ways = (math.prod(map(sharding.mesh.shape.__getitem__, axes)) for axes in split_of(sharding.spec, len(shape)))
    return tuple(-(-size // count) for size, count in zip(shape, ways, strict=True))


@functools.lru_cache(maxsize=1024)
def dtype_bits(dtype: jax.typing.DTypeLike) -> int:
    """Bits of one element as the compiler stores it: a bool is a byte, an int4 half of one, a float0 nothing."""
    if jnp.issubdtype(dtype, jax.dtypes.extended):
        if not jnp.issubdtype(dtype, jax.dtypes.prng_key):
            return 0
        words = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct((), dtype))
        return math.prod(words.shape) * dtype_bits(words.dtype)
    if dtype == jnp.bool_ or dtype == jax.dtypes.float0:
        return dtype.itemsize * 8
    if jnp.issubdtype(dtype, jnp.integer):
        return jnp.iinfo(dtype).bits
    if jnp.issubdtype(dtype, jnp.floating):
        return jnp.finfo(dtype).bits
    return dtype.itemsize * 8
