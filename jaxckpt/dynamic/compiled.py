"""The inner loops are compiled by numba where it is installed, and are the same plain Python where it is not.

Everything below `simulate` that runs once an op or once a block is written in the part of Python that numba compiles:
arrays, records of arrays, numbers. No other module of `jaxckpt.dynamic` depends on whether this code is compiled.
Without numba the results are equal to the last bit, and some hundred times slower.

Numba makes for each function a wrapper by which Python calls it. For a machine of thirty arrays that is as much code as
the function, and half of the minute that the first simulation compiled: only functions that Python does call have one.

Compiled code is kept on disk by numba, for one function, `engine.run`, with all that it calls. Numba looks at the file
of that function only; `sources` puts all files of the loops into what it looks at.
"""

import functools
import hashlib
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar, cast

try:
    numba: Any = import_module("numba")
except ImportError:  # the fast way is an extra
    numba = None

COMPILED = numba is not None and not numba.config.DISABLE_JIT
"""True if the loops run as machine code; numba's own NUMBA_DISABLE_JIT=1 turns that off."""

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS: dict[str, Any] = {"error_model": "numpy", "_nrt": False, "no_cfunc_wrapper": True}
"""No checks for division by zero; as the loops make no arrays, no counting of references to them: 16 times as fast
where a machine of thirty arrays goes from function to function; and no wrapper by which C would call a function."""

_MONOTONIC = 1
"""CLOCK_MONOTONIC on Linux."""


class _Inner:
    """A function that compiled functions call as machine code. Python runs its source, as it would without numba.

    A function without a wrapper may not be called by Python as numba makes it: that ends the process.
    """

    def __init__(self, function: Callable[..., Any]):
        self._compiled = numba.njit(function, no_cpython_wrapper=True, **_OPTIONS)
        functools.update_wrapper(self, function)

    @property
    def _numba_type_(self) -> Any:
        """The type of the function; numba asks globals of compiled functions for it."""
        return self._compiled._numba_type_

    def __call__(self, *arguments: Any) -> Any:
        return self._compiled.py_func(*arguments)


def compiled(function: F) -> F:
    """A function of arrays and numbers, as machine code if numba is there, for others that are compiled."""
    return cast(F, _Inner(function)) if COMPILED else function


def called(function: F) -> F:
    """The same for a function that Python calls too: each process compiles it anew."""
    return cast(F, numba.njit(function, **_OPTIONS)) if COMPILED else function


def entered(function: F) -> F:
    """The same for the function that Python calls: its machine code is kept on disk, where a folder can be written."""
    if not COMPILED:
        return function
    try:
        return cast(F, numba.njit(function, cache=True, **_OPTIONS))
    except RuntimeError:  # neither the package's folder nor the user's can be written: "no locator available"
        return cast(F, numba.njit(function, **_OPTIONS))


def sources() -> int:
    """A number that changes when any file of `jaxckpt.dynamic` does."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return int.from_bytes(digest.digest()[:6], "little")


if COMPILED:
    _clock_gettime = numba.types.ExternalFunction(
        "clock_gettime", numba.types.int32(numba.types.int32, numba.types.voidptr)
    )

    @called  # by Python too, where it runs the source of a function that reads the clock
    def now_ns(tick: Any) -> int:
        """Nanoseconds of a clock that never goes back; `tick` is scratch space of two integers."""
        _clock_gettime(_MONOTONIC, tick.ctypes)
        return tick[0] * 1_000_000_000 + tick[1]

else:

    def now_ns(tick: Any) -> int:
        """Nanoseconds of a clock that never goes back; `tick` is scratch space of two integers."""
        tick[0] = time.perf_counter_ns()
        return int(tick[0])
