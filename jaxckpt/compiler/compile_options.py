"""XLA options that every compile is given: one to read the program afterwards, two to compile faster.

None changes the memory that a program takes.

1. XLA dumps the optimised module to a folder. The dump is the one structured source that every backend fills: it holds
   the schedule and the buffer assignment. (`memory_analysis()` has an empty assignment for compile-only GPUs.)
2. The autotuner is off for a GPU that is not attached. Without a device there is nothing to tune kernels on, yet the
   autotuner would compile each kernel by itself to see whether the kernel can be compiled. A step has the autotuner
   after all if one of its matrix products has no such kernel in the configuration that XLA takes without it.
3. Compiled kernels are kept in a file, since plans of one step run hardly different kernels.
"""

import atexit
import functools
import os
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jaxckpt._errors import HloError
from jaxckpt.hlo import parse_hlo
from jaxckpt.machine import Facts, Target

AUTOTUNER = "xla_gpu_autotune_level"
_NO_KERNEL = "No supported config found"
"""XLA's error for kernels that it could compile in no configuration that it tried."""
_DUMPED = "*after_optimizations*.hlo.pb"
_MOST_BYTES = 1 << 26
"""XLA reads all of the file for each compile, so that a larger file is deleted. No benchmark fixed the exact size."""
_LENT: dict[Facts, list[threading.Lock]] = defaultdict(list)
"""For each device a lock for each of its files, held while a compile has the file: XLA writes it without a lock.

A file is a device's: XLA finds a kernel by what the kernel computes, whatever it was compiled for.
"""
_TUNED: set[tuple[Facts, str]] = set()
"""Devices and names of steps that needed the autotuner. Other plans of a step have the same kernels, and XLA writes
kilobytes to standard error for each compile that fails without the autotuner."""


def dump_options(folder: str | Path) -> tuple[tuple[str, object], ...]:
    """XLA options that make the compiler write its modules to a folder."""
    return (("xla_dump_to", str(folder)), ("xla_dump_hlo_as_proto", True))


def dumped_program(folder: str | Path) -> bytes | None:
    """The serialised `HloProto` that was dumped to a folder, with its schedule and its buffer assignment.

    None where the compiler wrote none, as when jax took the program from its cache.
    """
    for file in sorted(Path(folder).glob(_DUMPED)):
        data = file.read_bytes()
        try:
            parse_hlo(data)
        except HloError:
            continue  # libtpu writes the same module several times, once with its assignment
        return data
    return None


@functools.cache
def kernels_folder() -> Path:
    """A folder for what compiles of this process know of kernels; the end of the process deletes it."""
    folder = tempfile.TemporaryDirectory(prefix=f"jaxckpt-{os.getpid()}-kernels-", ignore_cleanup_errors=True)
    atexit.register(folder.cleanup)  # left to the folder's finaliser, Python warns of a resource
    return Path(folder.name)


def is_gpu_without_device(target: Target) -> bool:
    """True for an NVIDIA GPU that is not attached: there is nothing to tune kernels on."""
    return target.compile_only and target.platform == "cuda"


@contextmanager
def quick_options(target: Target, name: str = "") -> Iterator[dict[str, object]]:
    """XLA options that spare work for a step on a target; none where the program might run."""
    if not is_gpu_without_device(target):
        yield {}
        return
    with _free_file(target.facts) as file:
        if file.exists() and file.stat().st_size > _MOST_BYTES:
            file.unlink()
        tuned = {} if (target.facts, name) in _TUNED else {AUTOTUNER: 0}
        yield {**tuned, "xla_gpu_kernel_cache_file": str(file)}


def lacks_kernels(error: str) -> bool:
    """True if XLA's error says that kernels cannot be compiled in the one configuration of no autotuner.

    Seen with jax 0.12.0 for a batched product of bfloat16 whose 2,560 rows are 16 x 160 transposed ones.
    """
    return _NO_KERNEL in error


def require_autotuner(target: Target, name: str) -> None:
    """Compiles steps of this name for the target with the autotuner from now on."""
    _TUNED.add((target.facts, name))


@contextmanager
def _free_file(facts: Facts) -> Iterator[Path]:
    """A file of a device that no other compile has: the first one that is free, or a new one."""
    locks = _LENT[facts]
    lock = next((lock for lock in locks if lock.acquire(blocking=False)), None)
    if lock is None:
        lock = threading.Lock()
        lock.acquire()
        locks.append(lock)
    try:
        yield kernels_folder() / f"{list(_LENT).index(facts)}-{locks.index(lock)}.kernels"
    finally:
        lock.release()
