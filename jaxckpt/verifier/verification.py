"""Differences of two steps' results, and tolerances for rounding.

A compiled step rounds otherwise once it is rewritten. XLA fuses other operations, keeps what lies inside a fusion in
more bits, and adds in another order; so the last bits of a planned step are not those of the step as written, and no
plan is wrong for that. `TOLERANCES` say how far this may go. Run one operation at a time, both steps put the same
operands through the same kernels, and every bit must be equal: that is `verify(..., exact=True)`.

All arithmetic of `difference` is numpy's, in double precision, on the host: the comparison must not share the rounding
of the compared steps.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxckpt._errors import VerificationError
from jaxckpt._shown import Shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """How far an element may be from what it should be: `absolute + relative * (the scale of its array)`.

    Attributes:
      relative: A share of the largest finite magnitude in the array: rounding errors of sums grow with what is
        added, not with what is left, so an element near zero is allowed what its neighbours are. Of updated state it
        is a share of the largest change: small updates of large parameters must be right too.
      absolute: What is allowed on top; it matters for arrays that are zero but for rounding, such as the
        gradient of an attention's key bias.
    """

    relative: float
    absolute: float


EXACT = Tolerance(relative=0.0, absolute=0.0)

TOLERANCES: Mapping[str, Tolerance] = MappingProxyType(
    {
        "float64": Tolerance(relative=1e-11, absolute=1e-14),
        "float32": Tolerance(relative=1e-4, absolute=1e-7),
        "float16": Tolerance(relative=1e-2, absolute=1e-4),
        "bfloat16": Tolerance(relative=5e-2, absolute=1e-3),
        "complex128": Tolerance(relative=1e-11, absolute=1e-14),
        "complex64": Tolerance(relative=1e-4, absolute=1e-7),
    }
)
"""By type, what is allowed: some 1000 units in the last place of float32, a dozen of the 16-bit types, whose sums are
kept in float32. A float that comes out of a step computing in 16 bits is only as good as these, and gets their
tolerance. Types of 8 bits and less get `COARSEST`. Integers, booleans and keys must be equal."""

COARSEST = Tolerance(relative=0.25, absolute=1e-2)

_UPDATE = 0.1
"""A result that is closer to an argument, as a share of its largest magnitude, is that argument updated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafDifference:
    """One result of the step, of a shape and type, against the same result of the planned step, and what is allowed.

    Attributes:
      path: Where it stands in the results ("[0]['params']['kernel']"); "" where there is but one result.
      differing: How many elements are not equal; two NaNs are equal, and so are 0 and -0.
      max_absolute: The largest difference of two finite elements.
      max_relative: The same as a share of the step's own element; elements that are 0 in the step are left out.
      largest: The largest finite magnitude in the step's own result.
      scale: What the relative tolerance is a share of: of an argument that was updated by less than a tenth, the
        largest change; otherwise `largest`.
      unit: The distance from 1 to the next number of the type; 0 of integers.
      not_finite: How many elements of the step's own result are NaN or infinite.
      not_finite_differing: How many elements are NaN or infinite in one of the two, and not the same in the other.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    tolerance: Tolerance
    differing: int
    max_absolute: float
    max_relative: float
    largest: float
    scale: float
    unit: float
    not_finite: int
    not_finite_differing: int
    bit_equal: bool

    @property
    def allowed(self) -> float:
        """The difference that is allowed each element: the tolerance, and the rounding of the result itself."""
        if self.tolerance == EXACT:
            return 0.0
        return self.tolerance.absolute + self.tolerance.relative * self.scale + 4 * self.unit * self.largest

    @property
    def ok(self) -> bool:
        """True if the difference is within the tolerance, with NaN and infinity at the same places."""
        return not self.not_finite_differing and self.max_absolute <= self.allowed


def difference(
    path: str,
    step: jax.Array | np.ndarray,
    planned: jax.Array | np.ndarray,
    tolerance: Tolerance,
    *,
    start: jax.Array | None = None,
) -> LeafDifference:
    """Compares one result of two steps, element by element; keys by their data.

    `start` is the argument of the same shape and type that the result may be an update of.

    Example:
      >>> found = difference("[0]", np.float32([1, 0, 4]), np.float32([1, 0, 5]), Tolerance(relative=0.1, absolute=0))
      >>> found.differing, found.max_absolute, found.max_relative, found.ok
      (1, 1.0, 0.25, False)
    """
    one, other = _on_host(step), _on_host(planned)
    wide_one, wide_other = _wide(one), _wide(other)
    same = (one == other) | (np.isnan(wide_one) & np.isnan(wide_other))
    finite = np.isfinite(wide_one) & np.isfinite(wide_other)
    gap = np.abs(np.subtract(wide_other, wide_one, where=finite, out=np.zeros_like(wide_one)))
    gap = np.where(~same & finite & (gap == 0), 1.0, gap)  # of large integers, which floats do not tell apart
    magnitude = np.abs(_finite(wide_one))
    share = np.divide(gap, magnitude, where=magnitude > 0, out=np.zeros_like(gap))
    return LeafDifference(
        path=path,
        shape=tuple(step.shape),
        dtype=str(step.dtype),
        tolerance=tolerance,
        differing=int(np.sum(~same)),
        max_absolute=float(gap.max(initial=0)),
        max_relative=float(share.max(initial=0)),
        largest=float(magnitude.max(initial=0)),
        scale=_scale(wide_one, start),
        unit=_unit(one.dtype),
        not_finite=int(np.sum(~np.isfinite(wide_one))),
        not_finite_differing=int(np.sum(~same & ~finite)),
        bit_equal=one.tobytes() == other.tobytes(),
    )


def _unit(dtype: np.dtype) -> float:
    finfo: Any = jnp.finfo  # untyped in some versions of jax
    return float(finfo(dtype).eps) if jnp.issubdtype(dtype, jnp.inexact) else 0.0


def _scale(result: np.ndarray, start: jax.Array | None) -> float:
    """The largest change from a start that is not far; otherwise the largest magnitude."""
    largest = _largest(result)
    change = largest if start is None else _largest(_finite(result) - _finite(_wide(_on_host(start))))
    return change if 0 < change < _UPDATE * largest else largest


def _largest(array: np.ndarray) -> float:
    return float(np.abs(_finite(array)).max(initial=0))


def _finite(array: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(array), array, 0)


def _on_host(array: jax.Array | np.ndarray) -> np.ndarray:
    if array.dtype == jax.dtypes.float0:  # the gradient of integers, of which each element is zero
        return np.zeros(array.shape, bool)
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    return np.asarray(array)


def _wide(array: np.ndarray) -> np.ndarray:
    """In numbers that hold every value of the array's type, but for integers beyond 2**53."""
    wide: np.ndarray = array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
    return wide


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Verification(Shown):
    """A planned step compared with the step as written.

    Attributes:
      exact: True if both ran one operation at a time, so that every bit must be equal.
      leaves: Each array that the step returns: losses, gradients, updated state; in the order of its results.
      generated: Paths of arguments that were generated from descriptions.
      effects: Side effects of the step, such as prints; they happened in both runs.
      random_draws: How often random bits are drawn, in the step and in the planned step. More in the planned step means
        that bits are drawn a second time, from the same key.

    Example:
      >>> import jax, jax.numpy as jnp, jaxckpt
      >>> step = jax.grad(lambda w, x: jnp.tanh(jnp.tanh(x @ w) @ w).sum())
      >>> planned_step = jaxckpt.apply(step, jaxckpt.Policy(default="recompute"))
      >>> found = jaxckpt.verify(step, planned_step, jnp.eye(4), jnp.ones((2, 4)))
      >>> found.ok, len(found.leaves), found.random_draws
      (True, 1, (0, 0))
      >>> found.check() is found  # a test's last line: raises where a result differs
      True
    """

    _report: ClassVar[str] = "jaxckpt.report.checks:verification_report"

    step: str
    exact: bool
    leaves: tuple[LeafDifference, ...]
    generated: tuple[str, ...] = ()
    effects: tuple[str, ...] = ()
    random_draws: tuple[int, int] = (0, 0)

    def summary(self) -> str:
        """The figures that matter most, in one line."""
        wrong = f"{len(self.wrong)} of {len(self.leaves)} results differ by more than is allowed"
        right = f"all {len(self.leaves)} results {'bit equal' if self.bit_equal else 'within their tolerances'}"
        return f"{self.step}: {right if self.ok else wrong}"

    @property
    def wrong(self) -> tuple[LeafDifference, ...]:
        """The results that differ by more than is allowed, in their order."""
        return tuple(leaf for leaf in self.leaves if not (leaf.bit_equal if self.exact else leaf.ok))

    @property
    def ok(self) -> bool:
        """True if no result differs by more than its tolerance."""
        return not self.wrong

    @property
    def bit_equal(self) -> bool:
        """True if every bit of every result is equal."""
        return all(leaf.bit_equal for leaf in self.leaves)

    @property
    def not_finite(self) -> int:
        """How many elements of the results of the step as written are NaN or infinite; these compare nothing."""
        return sum(leaf.not_finite for leaf in self.leaves)

    def check(self) -> "Verification":
        """The verification itself if it is ok, so that `verify(...).check()` is a test.

        Raises:
          VerificationError: Results differ by more than is allowed; names them.
        """
        if self.ok:
            return self
        told = [f"({i}) {_told(leaf, exact=self.exact)}" for i, leaf in enumerate(self.wrong, 1)]
        raise VerificationError(
            f"verify({self.step}): the planned step computes something else in {len(told)} of"
            f" {len(self.leaves)} results.",
            got="; ".join(told[:8]) + ("; ..." if len(told) > 8 else ""),
            needed="every bit equal, one operation at a time" if self.exact else "differences that rounding explains",
            advice="report it: a plan must not change what a step computes"
            if self.exact
            else "verify(..., exact=True), which leaves no rounding; or tolerances= if your model amplifies it",
            verification=self,
        )


def _told(leaf: LeafDifference, *, exact: bool) -> str:
    name = f"result{leaf.path} {leaf.dtype}[{','.join(map(str, leaf.shape))}]"
    if leaf.not_finite_differing:
        return f"{name}: {leaf.not_finite_differing} elements are NaN or infinite in one of the two alone"
    size = f"{name}: {leaf.differing} elements differ, by {leaf.max_absolute:.3g} at most"
    return size if exact else f"{size}, where {leaf.allowed:.3g} is allowed"
