"""Options that make XLA compile faster for a GPU that is not attached, and a cache of compiled kernels.

Neither changes the memory that a program takes. Without a device there is nothing to tune kernels on, yet XLA's
autotuner would compile each kernel by itself to see whether the kernel can be compiled: the option turns the autotuner
off. Plans of one step run hardly different kernels: the cache keeps compiled kernels in a file.
"""

import functools
import os
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jaxckpt.machine import Facts, Target

_MOST_BYTES = 1 << 26
"""XLA reads all of the file for each compile, so that a larger file is deleted. No benchmark fixed the exact size."""
_LENT: dict[Facts, list[threading.Lock]] = defaultdict(list)
"""For each device a lock for each of its files, held while a compile has the file: XLA writes it without a lock.

A file is a device's: XLA finds a kernel by what the kernel computes, whatever it was compiled for.
"""


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """The folder of the files; the end of the process deletes it."""
    return tempfile.TemporaryDirectory(prefix=f"jaxckpt-{os.getpid()}-kernels-", ignore_cleanup_errors=True)


@contextmanager
def quick_options(target: Target) -> Iterator[dict[str, object]]:
    """XLA options that spare work for a target; none where the program might run."""
    if not (target.compile_only and target.platform == "cuda"):
        yield {}
        return
    with _free_file(target.facts) as file:
        if file.exists() and file.stat().st_size > _MOST_BYTES:
            file.unlink()
        yield {"xla_gpu_autotune_level": 0, "xla_gpu_kernel_cache_file": str(file)}


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
        yield Path(_folder().name) / f"{list(_LENT).index(facts)}-{locks.index(lock)}.kernels"
    finally:
        lock.release()
