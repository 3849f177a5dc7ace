"""A step that can be run on arrays: compiled as users run it, or one operation at a time.

Donation, static arguments and shardings of a jitted step are taken over. Arguments are copied for every run, so that a
run which donates arguments leaves those of the next run.

Read after `inputs` and `interpret`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from jaxckpt import _compat
from jaxckpt._errors import UnverifiableError
from jaxckpt.verifier.inputs import copies
from jaxckpt.verifier.interpret import run_one_by_one


@dataclass(frozen=True, slots=True, kw_only=True)
class Runnable:
    """A jitted function, the positions that are not traced, and the options to jit another function alike."""

    jitted: jax.stages.Wrapped
    static: frozenset[int]
    name: str
    options: Mapping[str, Any]

    @classmethod
    def of(
        cls,
        step: Callable[..., Any],
        args: Sequence[Any],
        *,
        donate_argnums: int | Sequence[int],
        static_argnums: int | Sequence[int],
    ) -> "Runnable":
        """A step, plain or jitted, with the arguments that it will be called with."""
        options = {"donate_argnums": donate_argnums, "static_argnums": static_argnums}
        if isinstance(step, jax.stages.Wrapped):
            positions, names = _compat.jit_static_arguments(step)
            options = {"static_argnums": positions, "static_argnames": names}
        else:
            step = jax.jit(step, **options)
            positions, _ = _compat.jit_static_arguments(step)
        return cls(
            jitted=step,
            static=frozenset(position % max(len(args), 1) for position in positions),
            name=getattr(step, "__name__", "step"),
            options=options,
        )

    def like(self, step: Callable[..., Any]) -> "Runnable":
        """Another step, called alike."""
        jitted = step if isinstance(step, jax.stages.Wrapped) else jax.jit(step, **self.options)
        return Runnable(jitted=jitted, static=self.static, name=self.name, options=self.options)

    def trace(self, args: tuple[Any, ...]) -> jax.stages.Traced:
        """The traced step for these arguments; nothing runs."""
        return self.jitted.trace(*args)

    def leaves(self, args: tuple[Any, ...]) -> dict[str, jax.Array]:
        """The arrays of the arguments by path."""
        dynamic = {i: arg for i, arg in enumerate(args) if i not in self.static}
        leaves = by_path(dynamic).items()
        return {path: leaf if isinstance(leaf, jax.Array) else jnp.asarray(leaf) for path, leaf in leaves}

    def run(self, args: tuple[Any, ...], traced: jax.stages.Traced, *, exact: bool) -> list[Any]:
        """Flat results on copies of arguments.

        Errors that the step raises itself pass through; others are `UnverifiableError`.
        """
        args = copies(args, static=self.static)
        try:
            if not exact:
                return [leaf.block_until_ready() for leaf in jax.tree.leaves(self.jitted(*args))]
            flat = self.leaves(args).values()
            return run_one_by_one(traced.jaxpr, *_compat.captured_arrays(traced), *flat)
        except jax.errors.JaxRuntimeError as error:
            device = jax.devices()[0]
            raise UnverifiableError(
                f"verify({self.name}): the step cannot be run on this machine.",
                got=f"{device.platform} ({device.device_kind}): {str(error).strip().splitlines()[0]}",
                needed="a machine that has what the step asks for: its memories, its kernels, its size",
                advice="verify where the step trains; or a smaller step of the same kind",
            ) from error


def by_path(tree: object) -> dict[str, Any]:
    """The leaves of a tree by path, in order."""
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]}
