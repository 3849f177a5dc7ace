"""A training step with its arguments, as one object: `Step`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

from jaxckpt._errors import ArgumentError


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Step:
    """A training step with its arguments, and with the positions that `jax.jit` takes.

    Functions of jaxckpt that take `step, *args` also take a `Step` instead of both.

    Attributes:
      function: Loss, gradient and, if there is one, the update: a function, plain or jitted.
      args: Its arguments: arrays, `jax.ShapeDtypeStruct`s (with shardings where there is a mesh), NNX objects, or
        pytrees of these.
      kwargs: Its keyword arguments, of the same kinds.
      donate_argnums: Positions of arguments whose memory the results may take; those of a jitted step are read from it.
      static_argnums: Positions of arguments that are not traced; those of a jitted step are read from it.

    Example:
      >>> import jax.numpy as jnp
      >>> Step(jnp.sin, (jnp.ones((8, 4)),), donate_argnums=0)
      Step(sin, float32[8,4], donate_argnums=0)
    """

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    donate_argnums: int | Sequence[int] = ()
    static_argnums: int | Sequence[int] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        step: "Callable[..., Any] | Step",
        args: Sequence[Any],
        *,
        donate_argnums: int | Sequence[int] = (),
        static_argnums: int | Sequence[int] = (),
    ) -> "Step":
        """The step of a public call: a function and its arguments, or a `Step` without further arguments."""
        if not isinstance(step, Step):
            return cls(step, tuple(args), donate_argnums=donate_argnums, static_argnums=static_argnums)
        if args or donate_argnums != () or static_argnums != ():
            positions = {"donate_argnums": donate_argnums, "static_argnums": static_argnums}
            given = [f"{key}={value!r}" for key, value in positions.items() if value != ()]
            raise ArgumentError(
                "a jaxckpt.Step brings its own arguments and their positions, and further ones were given.",
                got=", ".join([repr(step), f"{len(args)} further arguments", *given]),
                needed="the Step without any of these, or the function with them",
                advice=f"jaxckpt.Step({', '.join(['step', 'args', *given])})" if given else "the Step alone",
            )
        return step

    @property
    def argnums(self) -> "_Argnums":
        """Both kinds of positions, as keywords for functions that take `step, *args`."""
        return {"donate_argnums": self.donate_argnums, "static_argnums": self.static_argnums}

    def __repr__(self) -> str:
        name = getattr(self.function, "__name__", type(self.function).__name__)
        given = [f"{key}={value!r}" for key, value in self.argnums.items() if value != ()]
        named = [f"{key}={_described(value)}" for key, value in self.kwargs.items()]
        return f"Step({', '.join([name, *map(_described, self.args), *named, *given])})"


class _Argnums(TypedDict):
    donate_argnums: int | Sequence[int]
    static_argnums: int | Sequence[int]


def _described(arg: Any) -> str:
    """Type and shape of an array, the type alone of anything else: pytrees of parameters fill pages."""
    if hasattr(arg, "shape") and hasattr(arg, "dtype"):
        return f"{arg.dtype}[{','.join(map(str, arg.shape))}]"
    return type(arg).__name__
