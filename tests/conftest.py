"""What every test runs under: eight CPU devices, no accelerator looked for, the same examples on every run."""

import gc
import importlib.metadata
import os
import shutil
import sys
import threading
from collections import Counter, defaultdict

import pytest
from hypothesis import HealthCheck, settings

# Before jax is imported, by whichever file of tests comes first: it reads them once.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Tests compile thousands of small programs that run once: LLVM need not optimise them. Without the fusion emitters,
# which later versions cannot do without, jaxlib 0.10.2 compiles the steps of tests/rows/test_heads.py in a fifth of the
# time.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
    " --xla_llvm_disable_expensive_passes=true --xla_cpu_parallel_codegen_split_count=1"
    + " --xla_cpu_use_fusion_emitters=false"
    * importlib.metadata.version("jaxlib").startswith("0.10."),
)
# Some fifty processes import us: each would compile our modules where an environment asks to keep no bytecode.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Tracing makes and drops many objects: at the usual 700 the collector took 15 of 166 s of the tests of policies, now 7.
gc.set_threshold(50_000, 10, 10)

settings.register_profile(
    "jaxckpt",
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=20,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("jaxckpt")

CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


@pytest.fixture(scope="module")
def browser():
    """A Chromium of this machine without a window; the test skips where there is none, or none that starts."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, CHROMIUM_NAMES)), None)
    if path is None:
        pytest.skip(f"no Chromium here: none of {', '.join(CHROMIUM_NAMES)} is on the path")
    with sync_api.sync_playwright() as playwright:
        # No sandbox: tests run as root in containers, and the pages are our own.
        try:
            browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        except sync_api.Error as error:
            pytest.skip(f"{path} does not start here: {str(error).splitlines()[0]}")
        yield browser
        browser.close()


ENGINE = {"dynamic", "test_simulate.py"}
"""Folders and files whose tests simulate: numba compiles the engine for the first of them, a minute, and keeps it."""


LONG = {
    *("test_promises.py", "test_promises_of_loops.py", "test_floor.py", "test_solver.py", "test_notebooks.py"),
    *("test_recipes.py", "test_attention_blocks.py", "test_unmarked.py", "test_segments.py", "test_site.py"),
    *("test_chunking.py", "test_loop_tiling.py", "test_flat_residual_stacks.py"),
}
"""Files of few tests that take a quarter of a minute and more."""
MANY = 30
"""Tests of a file that is not among the last."""


def pytest_addoption(parser):
    parser.addoption("--cases", type=int, help="of each test with more cases than this, as many, evenly spread")


def pytest_collection_modifyitems(config, items):
    """Sorts the tests, after leaving out what `--cases` does."""
    if (most := config.getoption("--cases")) is not None:
        kept = set(spread(items, most))
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = [item for item in items if item in kept]
    sort(items)
    share_mlir_contexts()


def share_mlir_contexts():
    """Lets ten programs in a row be lowered in one MLIR context, as jax does since a version after 0.10.2.

    Making a context takes a quarter of the time that compiling one operation does, and tests compile tens of thousands.
    A thread has contexts of its own, and none is kept for long: what it interns lives as long as it does.
    """
    from jax._src.interpreters import mlir

    if hasattr(mlir, "_thread_local_context"):  # jax shares them itself
        return
    make_ir_context, shared = mlir.make_ir_context, threading.local()

    def make_or_share():
        if getattr(shared, "uses", 10) == 10:
            shared.context, shared.uses = make_ir_context(), 0
        shared.uses += 1
        return shared.context

    mlir.make_ir_context = make_or_share


def spread(items, most):
    """For each test at most so many of its cases, evenly spread over them, the first and the last among them."""
    cases = defaultdict(list)
    for item in items:
        cases[item.path, item.parent.name, getattr(item, "originalname", item.name)].append(item)
    for found in cases.values():
        if len(found) <= most:
            yield from found
        else:
            yield from (found[i * (len(found) - 1) // max(1, most - 1)] for i in range(most))


def sort(items):
    """First one file that simulates, then long files and those of many tests, the others that simulate, small ones.

    So one process compiles the engine, the other ones read it from numba's files, and at the end none waits long.
    """
    counts = Counter(item.path for item in items)
    simulating = {path for path in counts if ENGINE & {path.name, path.parent.name, path.parent.parent.name}}
    first = max(simulating, key=lambda path: (counts[path], path), default=None)

    def place(path):
        if path == first:
            return 0
        if path in simulating:
            return 2
        return 1 if path.name in LONG or counts[path] >= MANY else 3

    items.sort(key=lambda item: (place(item.path), item.path.name not in LONG, -counts[item.path]))


@pytest.fixture(scope="module")
def no_local_search():
    """No local search: these tests do not depend on the last per cent of small steps' plans."""
    from jaxckpt.solve.effort import Effort, with_default_effort

    with with_default_effort(Effort(op_runs=0)):
        yield
