"""Compiles several steps at once, in threads: XLA's compiler does not hold Python's lock.

Steps are lowered in the caller's thread, because jax's settings and meshes belong to a thread. XLA compiles the kernels
of one program in parallel by itself, so that a second program is for cores that one compile leaves idle.
"""

import os
import resource
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from jaxckpt.compiler.compile import Compilation, LoweredStep

_CORES = 4
"""Cores for each compile. `python -m benchmarks.side_by_side` prints the seconds of one, two and more at a time."""


def compile_side_by_side(steps: Iterable[LoweredStep]) -> list[Compilation]:
    """Compiles steps, the first one alone: it shows how much memory each of the others may take.

    Raises:
      CompileError: A step could not be compiled; the first such error in the order of the steps.
    """
    remaining = iter(steps)
    made = [step.compile() for _, step in zip(range(1), remaining, strict=False)]
    most = most_compiles()
    if most == 1:
        return made + [step.compile() for step in remaining]
    with ThreadPoolExecutor(most) as pool:
        return made + list(pool.map(LoweredStep.compile, remaining))


def most_compiles(*, cores: int | None = None, free_bytes: int | None = None, used_bytes: int | None = None) -> int:
    """The number of compiles at once, by the machine's cores and its free memory.

    Each may take as much as the whole process did at its peak.

    Example:
      >>> GIB = 2**30
      >>> most_compiles(cores=16, free_bytes=64 * GIB, used_bytes=2 * GIB)
      4
      >>> most_compiles(cores=16, free_bytes=4 * GIB, used_bytes=2 * GIB)
      2
      >>> most_compiles(cores=2, free_bytes=64 * GIB, used_bytes=2 * GIB)
      1
    """
    cores = cores or len(os.sched_getaffinity(0))
    free_bytes = free_bytes or os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    used_bytes = used_bytes or 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return max(1, min(cores // _CORES, free_bytes // used_bytes))
