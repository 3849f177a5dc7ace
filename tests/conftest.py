"""What every test runs under: eight CPU devices, no accelerator looked for, the same examples on every run."""

import os
from collections import Counter

# Before jax is imported, by whichever file of tests comes first: it reads them once.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Tests compile thousands of small programs that run once: LLVM need not optimise them.
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0")

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "jaxckpt",
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=20,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("jaxckpt")

ENGINE = {"dynamic", "test_simulate.py"}
"""Folders and files whose tests simulate: numba compiles the engine for the first of them, a minute, and keeps it."""


def pytest_collection_modifyitems(items):
    """First one file that simulates, then files by their number of tests; the others that simulate come last.

    So one process compiles the engine, the other ones read it from numba's files, and at the end none waits long.
    """
    counts = Counter(item.path for item in items)
    simulating = [path for path in counts if ENGINE & {path.name, path.parent.name, path.parent.parent.name}]
    first = max(simulating, key=lambda path: (counts[path], path), default=None)
    items.sort(key=lambda item: (item.path != first, item.path in simulating, -counts[item.path]))


@pytest.fixture(scope="module")
def no_local_search():
    """No local search: these tests do not depend on the last per cent of small steps' plans."""
    from jaxckpt.solve.problem import default_search_effort

    with default_search_effort(0.0):
        yield
