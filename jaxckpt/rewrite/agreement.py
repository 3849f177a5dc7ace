"""The devices of a step, and agreement of their processes: all of a run carry out the same plan, else it is an error.

A step over devices of several processes is one program that all of them start. Where their plans differ they compile
programs with collectives at different places, and wait for each other without end. So before a plan is carried out
every process writes the step's name and a digest of the plan into the store of JAX's distributed runtime, and reads the
texts of the others. No device takes part, so this works while a step is being traced. Exchanges are counted: the first
plan that each process carries out, the second, and so on.
"""

import functools
import hashlib
import itertools
from collections.abc import Callable, Iterable, Mapping

import jax
from jax.sharding import AbstractMesh

from jaxckpt import _compat
from jaxckpt._errors import AgreementError
from jaxckpt.ir import GraphPlan
from jaxckpt.trace import Traced

PATIENCE_S = 600.0
"""How long a process waits for the text of another one; planning the same step takes all of them about as long."""

_next_exchange: Callable[[], int] = itertools.count().__next__
"""The number of the next exchange, counted by process, since all processes of the run share the store."""


def devices_of(traced: Traced) -> Iterable[jax.Device]:
    """The devices that a step's arguments or its jit name, if any."""
    for sharding in (*(spec.sharding for spec in traced.specs), *traced.in_shardings):
        if sharding is not None and not isinstance(getattr(sharding, "mesh", None), AbstractMesh):
            yield from sharding.device_set


def platforms(traced: Traced) -> tuple[str, ...]:
    """The compilers' families ("cuda", "tpu", "cpu") of a step's devices, or of those that JAX uses by itself."""
    found = {device.platform for device in devices_of(traced)} or {jax.default_backend()}
    return tuple(sorted({"cuda" if platform == "gpu" else platform for platform in found}))


def spans_processes(traced: Traced) -> bool:
    """True if a step runs over devices of several processes, or names none in a run of several."""
    devices = list(devices_of(traced))
    is_local = bool(devices) and all(device.process_index == jax.process_index() for device in devices)
    return _compat.distributed_run() is not None and not is_local


def require_agreement(traced: Traced, plan: GraphPlan) -> None:
    """Refuses a plan that another process carries out differently, unless the step runs on this process alone."""
    run = _compat.distributed_run()
    if run is None or not spans_processes(traced):
        return
    texts = all_gather(run, f"{traced.name} {digest(plan)}", what=f"apply({traced.name})")
    if len(set(texts.values())) == 1:
        return
    raise AgreementError(
        f"apply({traced.name}): the processes of this run have different plans.",
        got="; ".join(f"process {process}: {text}" for process, text in texts.items()),
        needed="the same step and the same plan everywhere",
        advice="plan = jaxckpt.plan_once(lambda: jaxckpt.plan(...)) on every process, or one saved plan for all",
        said=texts,
    )


def digest(plan: GraphPlan) -> str:
    """A hash of a plan's decisions, stages, rows in pieces, loops and state; the same in every process."""
    changes = f"{plan.row_chunks}{plan.loop_splits}{plan.loop_tilings}{plan.host_arguments}"
    text = f"{plan.fingerprint}{tuple(plan.decisions.items())}{plan.stages}{plan.layers}{changes}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def all_gather(run: _compat.DistributedRun, text: str, *, what: str) -> Mapping[int, str]:
    """The texts of all processes in the next exchange, by process."""
    exchange = _next_exchange()
    run.write(f"jaxckpt/{exchange}/{run.index}", text)
    read = functools.partial(_read, run, exchange, what=what)
    return {process: text if process == run.index else read(process) for process in range(run.count)}


def broadcast(run: _compat.DistributedRun, text: str | None, *, what: str) -> str:
    """The text of process 0 in the next exchange; `text` is that of this process, or None on all others."""
    exchange = _next_exchange()
    if text is not None:
        run.write(f"jaxckpt/{exchange}/0", text)
        return text
    return _read(run, exchange, 0, what=what)


def _read(run: _compat.DistributedRun, exchange: int, process: int, *, what: str) -> str:
    found = run.read(f"jaxckpt/{exchange}/{process}", patience_s=PATIENCE_S)
    if found is not None:
        return found
    raise AgreementError(
        f"{what}: process {process} of this run does not answer.",
        got=f"process {run.index} waited for {PATIENCE_S:.0f} s, in its exchange number {exchange}",
        needed=f"all {run.count} processes to plan and to apply the same steps in the same order",
        advice="look for an error of that process; a step that only this process runs must be over its own devices"
        " only",
        process=process,
    )
