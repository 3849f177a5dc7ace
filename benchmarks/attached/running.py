"""With the device: each version compiled for it, run, timed, its peak read and its gradients kept.

One process does one model, so that a peak of memory is not another model's.
"""

import gc
import gzip
import math
import pickle
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.attached.planning import figures, named, plan_file, rows_of_kernels
from benchmarks.attached.questions import NONE, UNTUNED, Group, is_marked
from benchmarks.attached.starting import differences, gradient_places, keep_sample, sample_of, start_of
from benchmarks.attached.store import Store
from benchmarks.models import TrainingStep
from jaxckpt import Target
from jaxckpt.calibration import Timing, timed
from jaxckpt.compiler import Compilation, compile_step
from jaxckpt.compiler.compile_options import AUTOTUNER

_LOGS = "xla_gpu_dump_autotune_logs_to"
_NAP_S = 0.2
_WINDOW_S = 0.2
"""What one timed stretch of steps should take: long beside the start of a program and the wait for its end."""


def run_group(
    group: Group,
    store: Store,
    target: Target,
    *,
    deadline: float,
    patience_s: float = 15.0,
    clock: Callable[[], float] = time.time,
) -> None:
    """Runs the versions of a model in their order.

    A plan that is not there yet is waited for with so much patience; then versions behind it go first, and what is
    still not there is left to a later turn.
    """
    left = [version for version in group.versions if not store.has("measured", group.model, version)]
    left.sort(key=lambda version: store.is_claimed("run", group.model, version))  # last what ended an earlier process
    untuned = [version for version in UNTUNED.get(group.model, ()) if not store.has("untuned", group.model, version)]
    start = start_of(group.step()) if left or untuned else ()
    patience = patience_s / _NAP_S
    while left and clock() < deadline:
        ready = [version for version in left if is_ready(store, group, version)]
        if patience > 0 and (not ready or ready[0] != left[0]):
            patience -= 1
            time.sleep(_NAP_S)
            continue
        if not ready:
            break  # others may have the device meanwhile
        version = ready[0]
        left.remove(version)
        store.claim("run", group.model, version)
        store.record("measured", group.model, version, make=lambda v=version: measured(group, v, store, target, start))
        gc.collect()
    compare_all(group, store)
    for version in untuned:
        if clock() < deadline and is_ready(store, group, version):
            make = partial(measured, group, version, store, target, start, tuned=False)
            store.record("untuned", group.model, version, make=make)
            gc.collect()


def is_ready(store: Store, group: Group, version: str) -> bool:
    """Whether a version can be run: what is no plan can always, a plan once it is there or known to have failed."""
    if is_marked(version) or plan_file(store, group.model, version).exists():
        return True
    return "error" in (store.get("predicted", group.model, version) or {})


def measured(
    group: Group, version: str, store: Store, target: Target, start: Sequence[Any], *, tuned: bool = True
) -> dict[str, Any]:
    """All that the device says of one version, compiled with XLA's autotuner or without."""
    begun = time.perf_counter()
    made, step = made_version(group, version, store)
    kept_logs = str(store.file("autotuned", group.model, f"{version}.txt"))
    options = tuner_logs(target, kept_logs) if tuned else without_autotuner(target)
    with named(version):
        compilation = compile_step(
            step,
            *made.args,
            target=target,
            donate_argnums=made.donate_argnums,
            compiler_options=options,
        )
    compiled = time.perf_counter()
    found = figures(compilation.footprint)
    program = store.file("programs", group.model, f"{version}{'' if tuned else '-untuned'}.txt.gz")
    program.write_bytes(gzip.compress(compilation.executable.as_text().encode()))
    if compilation.footprint.memory is not None:
        found["kernels"] = rows_of_kernels(compilation.footprint.memory.kernels)
    stepper = Stepper(compilation=compilation, made=made, start=start)
    found |= run_stepper(stepper, store, group.model, version, keep=tuned)
    return found | {"prepare_s": compiled - begun, "wall_s": time.perf_counter() - begun}


def tuner_logs(target: Target, path: str) -> tuple[tuple[str, str], ...]:
    """A compiler option that keeps the times of all kernels that XLA's autotuner tries, where there is one."""
    return ((_LOGS, path),) if target.platform == "cuda" else ()


def without_autotuner(target: Target) -> tuple[tuple[str, int], ...]:
    """Compiler options that switch XLA's autotuner off; none for a target whose compiler has no autotuner."""
    return ((AUTOTUNER, 0),) if target.platform == "cuda" else ()


def made_version(group: Group, version: str, store: Store) -> tuple[TrainingStep, Callable[..., Any]]:
    """A model's description and the step of a version of it."""
    if is_marked(version):
        made = group.step(version)
        return made, made.step
    file = plan_file(store, group.model, version)
    if not file.exists():
        part = store.get("predicted", group.model, version) or {}
        raise RuntimeError(f"there is no plan: {part.get('error', 'not planned')}")
    made = group.step()
    return made, pickle.loads(file.read_bytes()).apply(made.step)


class Stepper:
    """Runs a compiled step on from where it is; its state is donated from step to step.

    Args:
      compilation: For the attached device.
      made: What it is of.
      start: Arguments of the first step, in host memory; those that are only described are zero.
    """

    def __init__(self, *, compilation: Compilation, made: TrainingStep, start: Sequence[Any]):
        self.executable = compilation.executable
        self.made = made
        self.start = start
        self.batch_count = len(jax.tree.leaves(made.args[2]))
        self.leaves: list[Any] = []
        self.results: Sequence[Any] = ()

    def restart(self) -> None:
        """Puts the arguments of a first step on the device."""
        self.leaves, self.results = [], ()
        device = jax.local_devices()[0]
        for leaf in jax.tree.leaves(self.start):
            described = isinstance(leaf, jax.ShapeDtypeStruct)
            put = jnp.zeros(leaf.shape, leaf.dtype, device=device) if described else jax.device_put(leaf, device)
            self.leaves.append(put)
        jax.block_until_ready(self.leaves)

    def step(self) -> None:
        """One step; returns before it is done."""
        self.results = self.executable(*self.leaves)
        batch = self.leaves[len(self.leaves) - self.batch_count :]
        self.leaves = [*self.results[: len(self.leaves) - self.batch_count], *batch]

    def steps(self, count: int) -> None:
        """Some steps, and waits for them."""
        for _ in range(count):
            self.step()
        jax.block_until_ready(self.results)

    def timed(self, *, budget_s: float = 1.0, clock: Callable[[], float] = time.perf_counter) -> tuple[Timing, int]:
        """Seconds of stretches of steps, and how many steps there are in one."""
        before = clock()
        self.steps(2)
        count = max(1, min(50, math.ceil(_WINDOW_S / max(1e-9, (clock() - before) / 2))))
        return timed(lambda: self.steps(count), budget_s=budget_s, least=5, most=15, warmups=1, clock=clock), count


def run_stepper(stepper: Stepper, store: Store, model: str, version: str, *, keep: bool) -> dict[str, Any]:
    """A first step whose gradients are kept if asked for, its peak of memory, and many steps that are timed."""
    before = memory_statistics()
    stepper.restart()
    stepper.steps(1)
    after = memory_statistics()
    places = gradient_places(stepper.made)
    if keep:
        keep_sample(store.file("samples", model, f"{version}.npz"), sample_of(list(stepper.results), places))
    timing, count = stepper.timed()
    found = {
        "measured_s": timing.median_s / count,
        "spread": timing.spread,
        "stretches": timing.count,
        "steps_in_each": count,
        "memory_before": before,
        "memory_after": after,
        "peak_is_its_own": after.get("peak_bytes_in_use", 0) > before.get("peak_bytes_in_use", 0),
    }
    if keep and version == NONE:  # what two runs of the same program differ by
        stepper.restart()
        stepper.steps(1)
        keep_sample(store.file("samples", model, "again.npz"), sample_of(list(stepper.results), places))
    return found


def memory_statistics() -> dict[str, int]:
    """What the allocator of the device says; nothing where it does not."""
    statistics = jax.local_devices()[0].memory_stats() or {}
    names = ("bytes_in_use", "peak_bytes_in_use", "bytes_limit", "largest_alloc_size")
    return {name: statistics[name] for name in names if name in statistics}


def compare_all(group: Group, store: Store) -> None:
    """Compares the gradients of all versions that were run with those of the step as it is."""
    reference = store.file("samples", group.model, f"{NONE}.npz")
    if not reference.exists():
        return
    for version in (*group.versions, "again"):
        sample = store.file("samples", group.model, f"{version}.npz")
        if version != NONE and sample.exists() and not store.has("compared", group.model, version):
            store.record("compared", group.model, version, make=lambda s=sample: differences(s, reference))
