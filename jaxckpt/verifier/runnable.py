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
from jaxckpt._step import Step
from jaxckpt.calling import Calling
from jaxckpt.verifier.inputs import copies
from jaxckpt.verifier.interpret import run_one_by_one


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedStep:
    """A step that JAX has traced.

    Attributes:
      stage: The trace.
      results: For each flat result its type, by path; what the step writes in place is among them.
      starts: The flat arguments by path.
    """

    stage: jax.stages.Traced
    results: Mapping[str, jax.ShapeDtypeStruct]
    starts: Mapping[str, jax.Array]


class Runnable:
    """A step as it is called, with its keyword arguments."""

    def __init__(self, step: Step, *, named_like: Calling | None = None):
        self.calling = Calling(step.function, named_like=named_like, **step.argnums)
        self.kwargs = step.kwargs
        self.name = getattr(step.function, "__name__", type(step.function).__name__)
        self._argnums = step.argnums

    def like(self, step: Callable[..., Any]) -> "Runnable":
        """Another step, called alike."""
        if Calling(step).is_jitted:
            return Runnable(Step(step, kwargs=self.kwargs), named_like=self.calling)
        return Runnable(Step(step, kwargs=self.kwargs, **self._argnums), named_like=self.calling)

    def trace(self, args: Sequence[Any]) -> TracedStep:
        """The traced step for these arguments; nothing runs."""
        with self.calling.bind(args, self.kwargs) as call:
            stage = call.trace()
            paths = call.result_paths(stage)
            arrays = (leaf if isinstance(leaf, jax.Array) else jnp.asarray(leaf) for leaf in call.leaves)
            return TracedStep(
                stage=stage,
                results=dict(zip(paths, jax.tree.leaves(stage.out_info), strict=True)),
                starts=dict(zip(call.paths, arrays, strict=True)),
            )

    def run(self, args: Sequence[Any], *, exact: bool) -> list[Any]:
        """Flat results on copies of arguments.

        Errors that the step raises itself pass through; others are `UnverifiableError`.
        """
        try:
            with self.calling.bind(copies(args, calling=self.calling), self.kwargs) as call:
                if not exact:
                    return [leaf.block_until_ready() for leaf in call.run()]
                stage = call.trace()
                flat = [leaf if isinstance(leaf, jax.Array) else jnp.asarray(leaf) for leaf in call.leaves]
                return run_one_by_one(stage.jaxpr, *_compat.captured_arrays(stage), *flat)
        except jax.errors.JaxRuntimeError as error:
            device = jax.devices()[0]
            raise UnverifiableError(
                f"verify({self.name}): the step cannot be run on this machine.",
                got=f"{device.platform} ({device.device_kind}): {str(error).strip().splitlines()[0]}",
                needed="a machine that has what the step asks for: its memories, its kernels, its size",
                advice="verify where the step trains; or a smaller step of the same kind",
            ) from error
