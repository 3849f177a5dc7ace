"""Footprint of a step in one call: trace, flatten, compile for the target, read."""

from collections.abc import Callable, Sequence
from typing import Any

from jaxckpt._step import Step
from jaxckpt.compiler.compile import Compilation, lower_flat
from jaxckpt.compiler.flat_step import flatten_step
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
    flat = flatten_step(call.function, call.args, call.kwargs, **call.argnums)
    return lower_flat(
        flat.function,
        flat.specs,
        target=machine,
        donated=flat.donated,
        compiler_options=tuple({**dict(flat.compiler_options), **dict(compiler_options)}.items()),
        out_shardings=flat.out_shardings,
        name=flat.name,
        argument_paths=flat.paths,
    ).compile()
