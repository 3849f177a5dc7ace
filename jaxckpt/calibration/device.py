"""The setup of a measurement: the device's name, its driver, the versions of its compilers.

Everything is asked of jax or read from files; nothing about the device is set.
"""

import importlib.metadata
import re
from pathlib import Path
from typing import Any

_PACKAGES = (
    "jax", "jaxlib", "jax-cuda13-plugin", "jax-cuda12-plugin", "libtpu", "nvidia-cudnn-cu13", "nvidia-cublas", "flax",
    "optax", "numpy", "scipy",
)  # fmt: skip
_DRIVER_FILE = Path("/proc/driver/nvidia/version")


def platform_of(device: Any) -> str:
    """The compiler's family, as in the fact files: jax calls NVIDIA's devices "gpu"."""
    return "cuda" if device.platform == "gpu" else device.platform


def driver_of(device: Any, *, file: Path = _DRIVER_FILE) -> str:
    """The driver of a device in one line: the kernel module's version where there is one, and that of jax's backend."""
    backend = " ".join(str(device.client.platform_version).split())
    if platform_of(device) == "cuda" and file.exists():
        found = re.search(r"\b\d+\.\d+(?:\.\d+)?\b", file.read_text("utf-8", "replace"))
        if found:
            return f"{found[0]}, {backend}"
    return backend


def installed_versions() -> tuple[tuple[str, str], ...]:
    """Pairs of package and version of what has a part in speed; those that are not installed are left out."""
    found = []
    for package in _PACKAGES:
        try:
            found.append((package, importlib.metadata.version(package)))
        except importlib.metadata.PackageNotFoundError:
            continue
    return tuple(found)
