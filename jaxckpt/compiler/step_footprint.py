"""Footprint of a step in one call: trace, flatten, compile for the target, read.

Tracing runs the step once on descriptions of its arguments; errors that the step itself raises then pass through
untouched. Donation, static arguments, shardings and options of a step that is already jitted are taken over.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxckpt import _compat
from jaxckpt._step import Step
from jaxckpt.calling import Calling
from jaxckpt.calling.arguments import leaf_sharding
from jaxckpt.compiler.compile import Compilation, LoweredStep, lower_flat
from jaxckpt.compiler.footprint_data import Footprint
from jaxckpt.machine import Target


def footprint(
    step: Callable[..., Any] | Step,
    *args: Any,
    target: Target | str,
    donate_argnums: int | Sequence[int] = (),
    static_argnums: int | Sequence[int] = (),
    compiler_options: Sequence[tuple[str, Any]] = (),
) -> Footprint:
    """The memory that a step takes on one device of a target, by XLA's figures. Nothing runs.

    Args:
      step: The function to compile, plain or jitted; donation, static arguments, shardings and compiler options of a
        jitted function are used. Or a `jaxckpt.Step`.
      *args: Its arguments: arrays, `jax.ShapeDtypeStruct`s, numbers, or pytrees of them. Shardings on other
        devices are moved to the target's.
      target: The machine, or its name.
      donate_argnums: Positions of arguments whose memory the results may take; those of a jitted step are read from it.
      static_argnums: Positions of arguments that are not traced; those of a jitted step are read from it.
      compiler_options: XLA options as pairs of name and value; they override those of the jit.

    Returns:
      Bytes per device; `total_bytes` is the figure to compare with a budget.

    Raises:
      ArgumentError: A jitted step has a leaf that is no array, or is given other static positions.
      CompileError: The compiler fails for the step, or gives no figures.
      TargetError: The target is unknown, cannot be compiled for here, or is too small for the mesh.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> x = jax.ShapeDtypeStruct((1024, 1024), jnp.float32)
      >>> footprint(lambda x: x + 1, x, target="cpu", donate_argnums=0).total_bytes
      4194304
    """
    return compile_step(
        step,
        *args,
        target=target,
        donate_argnums=donate_argnums,
        static_argnums=static_argnums,
        compiler_options=compiler_options,
    ).footprint


def compile_step(
    step: Callable[..., Any] | Step,
    *args: Any,
    target: Target | str,
    donate_argnums: int | Sequence[int] = (),
    static_argnums: int | Sequence[int] = (),
    compiler_options: Sequence[tuple[str, Any]] = (),
) -> Compilation:
    """As `footprint`, with the executable, which takes the step's arrays flat."""
    machine = Target(target)
    machine.require_compiler()  # before the step is traced
    call = Step.of(step, args, donate_argnums=donate_argnums, static_argnums=static_argnums)
    return lower_step(call, machine, compiler_options).compile()


def lower_step(step: Step, target: Target, compiler_options: Sequence[tuple[str, Any]] = ()) -> LoweredStep:
    """Traces a step, plain or jitted already, and lowers it for a target as a function of flat arrays.

    Raises an `ArgumentError` if a jitted step has a leaf that is no array, or is given other static positions again.
    """
    with Calling(step.function, **step.argnums).bind(step.args, step.kwargs) as call:
        stage = call.trace(reads_marks=False)
        leaves, donated, paths = _compat.traced_leaves(stage), call.donation(stage), call.paths
        shardings = [
            asked or leaf_sharding(leaf) for asked, leaf in zip(leaves.arg_shardings, call.leaves, strict=True)
        ]
    return lower_flat(
        leaves.call,
        tuple(map(_spec, leaves.avals, shardings)),
        target=target,
        donated=donated,
        compiler_options=tuple({**dict(leaves.compiler_options), **dict(compiler_options)}.items()),
        out_shardings=leaves.out_shardings,
        name=leaves.name,
        argument_paths=paths,
    )


def _spec(aval: jax.core.ShapedArray, sharding: jax.sharding.Sharding | None) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding, weak_type=getattr(aval, "weak_type", False))
