"""Runs a step and its planned form on the same arguments, and compares every result.

Both are traced by JAX and run as users run them: compiled, on the attached devices. Arguments are copied for every run,
so that a run which donates arguments leaves those of the next run. The comparison holds for training up to rounding.
With `exact=True` the two traces are run one operation at a time, and every bit must be equal.

Read after the other files of this folder.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import takewhile
from types import MappingProxyType
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np

from jaxckpt import _compat, ir
from jaxckpt._errors import UnverifiableError, VerificationError
from jaxckpt._step import Step
from jaxckpt.calling import Calling
from jaxckpt.rewrite import apply
from jaxckpt.rewrite.host_arguments import moves_in_traces
from jaxckpt.verifier.inputs import copies, make_inputs
from jaxckpt.verifier.interpret import run_one_by_one
from jaxckpt.verifier.verification import (
    COARSEST,
    EXACT,
    TOLERANCES,
    LeafDifference,
    Tolerance,
    Verification,
    difference,
)

_NO_TOLERANCES: Mapping[str, Tolerance] = MappingProxyType({})


def verify(
    step: Callable[..., Any] | Step,
    planned: Callable[..., Any] | ir.GraphPlan,
    *args: Any,
    exact: bool = False,
    tolerances: Mapping[str, Tolerance] = _NO_TOLERANCES,
    donate_argnums: int | Sequence[int] = (),
    static_argnums: int | Sequence[int] = (),
) -> Verification:
    """Runs a step and its planned form on the same arguments, and compares every result.

    Args:
      step: The step as written: a function, plain or jitted; or a `jaxckpt.Step`.
      planned: `plan.apply(step)`, `jaxckpt.apply(step, policy)`, any other function, jitted or not; or a plan.
      *args: Arguments of the step: arrays, or `jax.ShapeDtypeStruct`s, for which arrays are generated, equal in every
        run: small floats, integers 0 to 3, real keys.
      exact: Runs both one operation at a time and demands that every bit is equal; slower.
      tolerances: By type of a result, instead of `jaxckpt.verifier.TOLERANCES`.
      donate_argnums: Positions whose memory the results may take; of a plain step. Donated arrays are copied before.
      static_argnums: Positions that are not traced; of a plain step.

    Returns:
      The differences of all results, by path: `verification.ok` says if they are within tolerances, and
      `verification.check()` raises. NaN and infinity must be at the same elements as in the results of the step as
      written.

    Raises:
      VerificationError: The results have another structure, shape or type.
      UnverifiableError: The step cannot run on this machine, or all its results are NaN for generated arguments.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> step = jax.grad(lambda w, x: jnp.tanh(jnp.tanh(x @ w) @ w).sum())
      >>> other = lambda w, x: 1.01 * step(w, x)
      >>> args = jax.ShapeDtypeStruct((4, 4), jnp.float32), jnp.ones((2, 4))
      >>> verify(step, jax.jit(step), *args).check().bit_equal, verify(step, other, *args).ok
      (True, False)
    """
    call = Step.of(step, args, donate_argnums=donate_argnums, static_argnums=static_argnums)
    called = Runnable(call)
    other = called.like(apply(call.function, planned) if isinstance(planned, ir.GraphPlan) else planned)
    inputs = make_inputs(call.args, calling=called.calling)
    traced, results = called.trace(inputs.args)
    with moves_in_traces():
        planned_traced, planned_results = other.trace(inputs.args)
    _refuse_other_results(called.name, results, planned_results)
    expected = called.run(inputs.args, exact=exact)
    if inputs.generated and any(map(_is_nan, expected)):
        inputs = make_inputs(call.args, calling=called.calling, tame=True)
        expected = called.run(inputs.args, exact=exact)
        _refuse_void(called.name, expected)
    with moves_in_traces():
        found = other.run(inputs.args, exact=exact)
    allowed = partial(_tolerance, exact=exact, given=tolerances, computed_in=_computed_in(traced))
    return Verification(
        step=called.name,
        exact=exact,
        leaves=tuple(_differences(tuple(results), expected, found, allowed, starts=called.arrays(inputs.args))),
        generated=inputs.generated,
        effects=tuple(sorted({str(effect) for effect in traced.jaxpr.effects})),
        random_draws=(_random_draws(traced), _random_draws(planned_traced)),
    )


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

    def trace(self, args: Sequence[Any]) -> tuple[jax.stages.Traced, Mapping[str, jax.ShapeDtypeStruct]]:
        """The traced step for these arguments, and for each flat result its type, by path; nothing runs.

        What the step writes in place is among the results.
        """
        with self.calling.bind(args, self.kwargs) as call:
            stage = call.trace()
            return stage, dict(zip(call.result_paths(stage), jax.tree.leaves(stage.out_info), strict=True))

    def arrays(self, args: Sequence[Any]) -> Mapping[str, jax.Array]:
        """The flat arguments by path."""
        with self.calling.bind(args, self.kwargs) as call:
            return dict(zip(call.paths, map(_array, call.leaves), strict=True))

    def run(self, args: Sequence[Any], *, exact: bool) -> list[Any]:
        """Flat results on copies of arguments.

        Errors that the step raises itself pass through; others are `UnverifiableError`.
        """
        try:
            with self.calling.bind(copies(args, calling=self.calling), self.kwargs) as call:
                if not exact:
                    return list(jax.block_until_ready(call.run()))
                stage = call.trace()
                results = run_one_by_one(stage.jaxpr, *_compat.captured_arrays(stage), *map(_array, call.leaves))
                return list(map(_array, results))  # a step may return Python's numbers
        except jax.errors.JaxRuntimeError as error:
            device = jax.devices()[0]
            raise UnverifiableError(
                f"verify({self.name}): the step cannot be run on this machine.",
                got=f"{device.platform} ({device.device_kind}): {str(error).strip().splitlines()[0]}",
                needed="a machine that has what the step asks for: its memories, its kernels, its size",
                advice="verify where the step trains; or a smaller step of the same kind",
            ) from error


def _array(leaf: jax.typing.ArrayLike) -> jax.Array:
    return leaf if isinstance(leaf, jax.Array) else jnp.asarray(leaf)


def _refuse_other_results(
    name: str, step: Mapping[str, jax.ShapeDtypeStruct], planned: Mapping[str, jax.ShapeDtypeStruct]
) -> None:
    ours, theirs = ({path: _typed(leaf) for path, leaf in results.items()} for results in (step, planned))
    differing = [path for path in {**ours, **theirs} if ours.get(path) != theirs.get(path)]
    if not differing:
        return

    def listed(of: dict[str, str]) -> str:
        each = [f"({i}) {_named(path)} is {of.get(path, 'absent')}" for i, path in enumerate(differing, 1)]
        return "; ".join(each[:8]) + ("; ..." if len(each) > 8 else "")

    raise VerificationError(
        f"verify({name}): the planned step returns something else ({len(differing)} results differ).",
        got=listed(theirs),
        needed=listed(ours),
        advice="pass what was made from this very step: plan.apply(step), jaxckpt.apply(step, policy)",
        differing=tuple(differing),
    )


def _named(path: str) -> str:
    """A path in the results as such; that of a variable, which the step writes, names its argument."""
    return path if path and path[0] not in "[." else f"result{path}"


def _typed(leaf: jax.Array | jax.ShapeDtypeStruct) -> str:
    return f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"


def _is_nan(leaf: jax.Array) -> bool:
    """True if a result has no number in it."""
    if not jnp.issubdtype(leaf.dtype, np.inexact) or not leaf.size:
        return False
    return bool(jnp.isnan(leaf).all())


def _refuse_void(name: str, results: Sequence[jax.Array]) -> None:
    void = sum(map(_is_nan, results))
    if void:
        raise UnverifiableError(
            f"verify({name}): generated arguments tell nothing about this step.",
            got=f"{void} of its {len(results)} results are NaN in every element, in the step as written",
            needed="arguments that it gives numbers for",
            advice="pass real arrays in the place of jax.ShapeDtypeStructs, at least for what may not be any number",
        )


def _equations(closed: jex.ClosedJaxpr | jex.Jaxpr) -> Iterator[jex.JaxprEqn]:
    """The equations at all levels."""
    for eqn in getattr(closed, "jaxpr", closed).eqns:
        yield eqn
        for inner in jex.jaxprs_in_params(eqn.params):
            yield from _equations(inner)


def _random_draws(traced: jax.stages.Traced) -> int:
    return sum(eqn.primitive.name in ("random_bits", "threefry2x32") for eqn in _equations(traced.jaxpr))


def _computed_in(traced: jax.stages.Traced) -> frozenset[str]:
    """Types of the results of all operations."""
    avals = (v.aval for eqn in _equations(traced.jaxpr) for v in eqn.outvars)
    return frozenset(str(aval.dtype) for aval in avals if hasattr(aval, "dtype"))


def _tolerance(
    dtype: np.dtype, *, exact: bool, given: Mapping[str, Tolerance], computed_in: frozenset[str]
) -> Tolerance:
    """The type's tolerance; of a float that of the coarsest type that the step computes in, if that is coarser."""
    if str(dtype) in given:
        return given[str(dtype)]
    if exact or not jnp.issubdtype(dtype, np.inexact):
        return EXACT
    floats = [name for name in computed_in if "float" in name and not name.startswith("key")]
    known = [TOLERANCES.get(name, COARSEST) for name in (str(dtype), *floats)]
    return max(known, key=lambda tolerance: tolerance.relative)


def _differences(
    paths: Sequence[str],
    step: Sequence[Any],
    planned: Sequence[Any],
    allowed: Callable[..., Tolerance],
    *,
    starts: Mapping[str, Any],
) -> Iterator[LeafDifference]:
    alike: dict[str, dict[str, Any]] = {}
    for path, leaf in starts.items():
        if jnp.issubdtype(leaf.dtype, np.inexact):
            alike.setdefault(_typed(leaf), {})[path] = leaf
    for path, one, other in zip(paths, step, planned, strict=True):
        start = _start(path, alike.get(_typed(one), {}))
        yield difference(path, one, other, allowed(one.dtype), start=start)


def _start(path: str, alike: Mapping[str, Any]) -> Any:
    """The argument that a result may be an update of: of those like it the one whose path ends most like its own."""

    def common(other: str) -> int:
        pairs = zip(reversed(path), reversed(other), strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

    return alike[max(alike, key=common)] if alike else None
