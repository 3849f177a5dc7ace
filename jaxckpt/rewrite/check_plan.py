"""Checks that a plan is for the step that it is used on.

A plan knows its graph by a fingerprint alone. Given the arguments that the plan was made for, the error names all that
differ.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import jax

from jaxckpt._errors import PlanMismatchError
from jaxckpt.ir import GraphPlan
from jaxckpt.trace import Traced


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One flat argument that a plan was made for.

    Attributes:
      path: As `jax.tree_util.keystr` writes it.
      shape: Of the array.
      dtype: Of the array.
      weak_type: True for the type of a Python number, with which JAX computes in the other operand's dtype.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    weak_type: bool = False

    def __str__(self) -> str:
        """The type, as errors name it."""
        weak = " of a Python number (a weak type)" if self.weak_type else ""
        return f"{self.dtype}[{','.join(map(str, self.shape))}]{weak}"

    @classmethod
    def of(cls, path: str, spec: jax.ShapeDtypeStruct) -> "Argument":
        """The argument of a traced step."""
        return cls(path=path, shape=tuple(spec.shape), dtype=str(spec.dtype), weak_type=spec.weak_type)


def check_planned(traced: Traced, plan: GraphPlan, arguments: Sequence[Argument] = ()) -> None:
    """Refuses a plan that was made for another step; the error names the arguments that differ."""
    found = traced.graph.fingerprint
    if found == plan.fingerprint:
        return
    differing = list(_differing_arguments(traced, arguments)) if arguments else []
    if differing:
        raise PlanMismatchError(
            f"apply({traced.name}): the plan was made for other arguments ({len(differing)} differ).",
            got=_numbered((path, called) for path, called, _ in differing),
            needed=_numbered((path, planned) for path, _, planned in differing),
            advice="call it with the shapes and types that it was planned for, or plan again for these",
            differing=tuple(differing),
        )
    raise PlanMismatchError(
        f"apply({traced.name}): the plan is for another step"
        + (", though its arguments are the same." if arguments else "."),
        got=f"fingerprint {found}, {len(traced.graph.ops)} ops",
        needed=f"fingerprint {plan.fingerprint}",
        advice="plan again: the step's code, its static arguments (as of training or evaluation) or the version of jax"
        " has changed",
        planned=plan.fingerprint,
        found=found,
    )


def _numbered(pairs: Iterator[tuple[str, str]]) -> str:
    lines = [f"({i}) {path} {what}" for i, (path, what) in enumerate(pairs, 1)]
    return "; ".join(lines[:8]) + ("; ..." if len(lines) > 8 else "")


def _differing_arguments(traced: Traced, arguments: Sequence[Argument]) -> Iterator[tuple[str, str, str]]:
    """For each argument that differs its path, its type in this call, and its type when the plan was made."""
    called = {path: str(Argument.of(path, spec)) for path, spec in zip(traced.paths, traced.specs, strict=True)}
    planned = {argument.path: str(argument) for argument in arguments}
    for path in {**planned, **called}:
        if called.get(path) != planned.get(path):
            yield path, called.get(path, "is absent"), planned.get(path, "is absent")
