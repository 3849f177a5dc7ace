"""A result is a JSON file that says with what it was made."""

import datetime
import importlib.metadata
import json
import os
import platform
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
_PACKAGES = ("jaxckpt", "jax", "jaxlib", "jax-cuda13-plugin", "flax", "optax", "scipy", "numpy")


def keep(name: str, data: dict[str, Any]) -> Path:
    """Writes a result with versions, date and machine; one file a benchmark and Python version."""
    path = RESULTS / f"{name}-py{platform.python_version_tuple()[0]}{platform.python_version_tuple()[1]}.json"
    path.write_text(json.dumps({"made_with": made_with(), **data}, indent=1) + "\n")
    print(f"kept {path}")
    return path


def read(name: str, python: str = "py312") -> dict[str, Any]:
    """Reads a result back."""
    return json.loads((RESULTS / f"{name}-{python}.json").read_text())


def made_with() -> dict[str, Any]:
    """Versions, date and machine."""
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "versions": versions,
    }
