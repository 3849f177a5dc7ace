"""Starts the processes, gathers what they write into one file, and stops them when time is up.

It has no device and loads no jax until all is over. What it starts it ends itself, each process by its own number.
"""

import contextlib
import importlib.metadata
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.attached.store import HEADLINE, Store, read_result, write_result
from benchmarks.record import made_with

ROOT = Path(__file__).parents[2]
FACTS = ROOT / "jaxckpt" / "machine" / "facts"
RESULT = "attached.json"
_COMPILER = ("jax", "jaxlib", "jax-cuda13-plugin", "jax-cuda12-plugin")
_NODES = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/kfd")
_MEMORY_SHARE = "0.92"
"""Of the device, for jax's allocator: what is left is for the libraries' own workspaces and the driver."""
_MOST_TURNS = 3
"""Of one model: a version that brings its process down would be tried for ever."""
_MOST_QUIET_S = 120.0
"""A worker that wrote no answer for so long is taken to hang."""
_TARGET = "h200"
"""What a device is taken for whose name stands in no fact file."""
OTHER_DEVICE = 3
"""A worker's exit code: what is known is of another device."""
_SPENT_LAST_S = 8.0
"""Kept for tables and the fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a run is made.

    Attributes:
      seconds: What the whole run may take.
      out: Folder of the result.
      scratch: Folder of what is needed while it goes on.
      target: What the device is compiled for without it.
      models: The first one is asked about whole; `HEADLINE` among them stands for the largest batches.
      small: Whether to take tiny sizes: a smoke test.
      planners: How many processes compile without the device.
      calibrate_s: Of the calibration.
    """

    seconds: float
    out: Path
    scratch: Path
    target: str
    models: tuple[str, ...]
    small: bool
    planners: int
    calibrate_s: float

    @property
    def made_for(self) -> dict[str, Any]:
        """What decides whether an earlier result still holds."""
        return {"target": self.target, "small": self.small, "versions": installed(_COMPILER)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One turn at the device.

    Attributes:
      name: Of it.
      arguments: For the worker.
      share: Of the whole run's seconds, at most.
      model: Whose versions are run, if any are.
      needs: A part that must be there before, if one must.
    """

    name: str
    arguments: tuple[str, ...]
    share: float
    model: str = ""
    needs: tuple[str, ...] = ()


def installed(packages: Sequence[str]) -> dict[str, str]:
    """Versions of those that are."""
    found = {}
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def driver_names() -> str:
    """What NVIDIA's driver calls its devices, a line each; nothing where it is not asked."""
    try:
        asked = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        return subprocess.run(asked, capture_output=True, text=True, check=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def has_device(nodes: Sequence[str] = _NODES) -> bool:
    """True if there is a GPU, by its device files or its driver: asking jax would open it."""
    return any(Path(node).exists() for node in nodes) or bool(driver_names())


def attached_target(names: Callable[[], str] = driver_names) -> str:
    """The target that the first GPU is, by its driver's name for it, read from fact files: the package loads jax."""
    first = names().split("\n")[0].strip()
    for file in sorted(FACTS.glob("*.toml")):
        if first in tomllib.loads(file.read_text()).get("device_kinds", ()):
            return file.stem
    return _TARGET


def jobs(options: Options) -> Iterator[Job]:
    """The turns at the device, in their order."""
    yield Job(name="calibrate", arguments=("calibrate",), share=0.25)
    for number, model in enumerate(options.models):
        if model == HEADLINE:
            yield Job(name=model, arguments=(model,), share=0.35, needs=(model, "batches"))
        else:
            share = 0.25 if number else 0.4
            yield Job(name=f"run {model}", arguments=("run", "--model", model), share=share, model=model)


def planner_environment() -> dict[str, str]:
    """That of a process that must see no device."""
    return {**os.environ, "JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": python_path()}


def device_environment(*, device: bool) -> dict[str, str]:
    """That of a process that has the device, or the processor where there is none."""
    environment = {**os.environ, "PYTHONPATH": python_path()}
    if device:
        environment.pop("JAX_PLATFORMS", None)
        environment.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", _MEMORY_SHARE)
    else:
        environment["JAX_PLATFORMS"] = "cpu"
    return environment


def python_path() -> str:
    return os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))


@dataclass(slots=True, kw_only=True)
class Run:
    """A run that goes on."""

    options: Options
    store: Store
    begun: float
    children: list[subprocess.Popen[bytes]] = field(default_factory=list)
    written: int = -1
    turns: Counter[str] = field(default_factory=Counter)
    ready: dict[str, frozenset[str]] = field(default_factory=dict)
    """By job the versions that were planned and not run when its last turn began."""
    prepared: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    """By job its worker, which has loaded its packages and waits for its turn."""

    @property
    def deadline(self) -> float:
        """When the last worker must be done; the tables come after it."""
        return self.begun + self.options.seconds - min(_SPENT_LAST_S, 0.1 * self.options.seconds)

    def all(self, device_jobs: Sequence[Job], *, device: bool) -> None:
        """Planners at the side, the turns at the device one after the other."""
        numbers = range(self.options.planners)
        planners = [self.start(f"plan-{n}", ("plan",), planner_environment(), nice=True) for n in numbers]
        pending = [job for job in device_jobs if not self.is_answered(job)]
        while self.left() > 0:
            planning = any(planner.poll() is None for planner in planners)
            job = self.next(pending, device_jobs)
            if job is None and not planning:
                break
            if job is None:
                time.sleep(0.3)
                self.gather()
                continue
            if job in pending:
                pending.remove(job)
            if self.turn(job, device_environment(device=device), following=pending[:1]) == OTHER_DEVICE:
                break
        for job in pending:
            self.note(job.name, "not begun: no time was left, or its plans were not there")
        self.gather()

    def next(self, pending: Sequence[Job], device_jobs: Sequence[Job]) -> Job | None:
        """Whose turn it is: a model's again that plans came too late for, or the first that has all it needs.

        A model whose time was up has another turn when all others had theirs.
        """
        begun = [job for job in device_jobs if job not in pending and job.model and self.turns[job.name] < _MOST_TURNS]
        left = {job: versions for job in begun if (versions := self.left_of(job.model))}
        late = {job: len(versions - self.ready.get(job.name, frozenset())) for job, versions in left.items()}
        first = next((job for job in pending if not job.needs or self.store.has(*job.needs)), None)
        most = max(left, key=lambda job: (late[job], len(left[job])), default=None)
        return most if most is not None and (first is None or late[most] > 1) else first

    def is_answered(self, job: Job) -> bool:
        """True if an earlier run had all planned versions of a job's model; later plans bring the job back."""
        parts = set(self.store.keys())
        was_run = any(key[:2] == ("measured", job.model) for key in parts)
        return was_run and not self.left_of(job.model)

    def left_of(self, model: str) -> frozenset[str]:
        """Versions that are planned and were not run."""
        parts = set(self.store.keys())
        versions = (key[2] for key in parts if key[:2] == ("predicted", model))
        return frozenset(version for version in versions if ("measured", model, version) not in parts)

    def left(self) -> float:
        return self.deadline - time.time()

    def turn(self, job: Job, environment: Mapping[str, str], *, following: Sequence[Job] = ()) -> int | None:
        """One turn; it knows its own deadline, and is ended a little after it where it hangs. Its exit code.

        Workers of the jobs that probably follow are started meanwhile: to load the packages takes seconds.
        """
        until = min(self.deadline, time.time() + job.share * self.options.seconds)
        self.turns[job.name] += 1
        self.ready[job.name] = self.left_of(job.model)
        name = job.name.replace(" ", "-")
        child = self.prepare(job, environment)
        del self.prepared[job.name]
        if child.stdin is not None:
            with contextlib.suppress(BrokenPipeError), child.stdin as told:  # it may have ended already
                told.write(f"{until}\n".encode())
        for each in following:
            self.prepare(each, environment)
        grace_s = min(30.0, 0.15 * self.options.seconds)  # a compile that was begun in time may end
        answered = time.time()
        while child.poll() is None and time.time() < min(until + grace_s, answered + _MOST_QUIET_S, self.deadline):
            time.sleep(0.3)
            if self.gather():
                answered = time.time()
        if child.poll() is None:
            end(child)
            self.note(job.name, "stopped: its time was up")
        elif child.returncode:
            self.note(job.name, f"exit {child.returncode}: {tail(self.log(name))}")
        self.gather()
        return child.returncode

    def prepare(self, job: Job, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """A job's worker, which loads all packages and waits for its deadline before it takes the device."""
        if job.name not in self.prepared:
            arguments = (*job.arguments, "--deadline-from-input")
            self.prepared[job.name] = self.start(job.name.replace(" ", "-"), arguments, environment)
        return self.prepared[job.name]

    def start(
        self, name: str, arguments: Sequence[str], environment: Mapping[str, str], *, nice: bool = False
    ) -> subprocess.Popen[bytes]:
        """A worker; it prints here, and its errors go to a log. A nice one lets what has the device go first."""
        options = self.options
        command = ["nice", "-n", "10"] if nice and shutil.which("nice") else []
        command += [sys.executable, "-m", "benchmarks.attached.workers", *arguments]
        command += ["--store", str(self.store.folder), "--target", options.target, "--models", *options.models]
        command += ["--calibrate-s", str(options.calibrate_s), *(["--small"] if options.small else [])]
        with self.log(name).open("wb") as log:
            child = subprocess.Popen(command, cwd=ROOT, env=dict(environment), stdin=subprocess.PIPE, stderr=log)
        self.children.append(child)
        return child

    def log(self, name: str) -> Path:
        return self.store.file("logs", f"{name}.txt")

    def note(self, name: str, text: str) -> None:
        """What did not go as it should, kept with the answers."""
        print(f"{name}: {text.splitlines()[-1][:200] if text else ''}", flush=True)
        self.store.put("notes", name.replace(" ", "-"), part={"note": text})

    def gather(self) -> bool:
        """Writes the one file where there is something new; True if there is."""
        count = len(list(self.store.keys()))
        if count == self.written:
            return False
        self.written = count
        self.write(self.store.merged())
        return True

    def write(self, parts: Mapping[str, Mapping[str, Any]]) -> None:
        path = self.options.out / RESULT
        write_result(path, made_for=self.options.made_for, made_with=made_with(), parts=parts)

    def stop(self) -> None:
        for child in self.children:
            end(child)


def tail(log: Path, *, most: int = 1500) -> str:
    """The end of a log."""
    return log.read_text("utf-8", "replace")[-most:] if log.exists() else ""


def end(child: "subprocess.Popen[bytes]", *, patience_s: float = 3.0) -> None:
    """Asks a process of ours to stop, and then makes it."""
    if child.poll() is not None:
        return
    child.terminate()
    try:
        child.wait(patience_s)
    except subprocess.TimeoutExpired:
        child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # what hangs in the driver may be left behind
            child.wait(patience_s)


def run(options: Options, *, finish: Callable[[Options], None], device: bool | None = None) -> None:
    """A whole run: what is known already is kept, what is missing is asked, and what follows is written.

    Args:
      options: How.
      finish: Makes tables of the result's file.
      device: Whether there is one; looked for where it is not said.
    """
    store = Store(folder=options.scratch)
    shutil.rmtree(store.folder / "files" / "claims", ignore_errors=True)
    store.forget_failures()
    store.unpack(read_result(options.out / RESULT, made_for=options.made_for))
    this = Run(options=options, store=store, begun=time.time())
    previous = signal.signal(signal.SIGTERM, _leave)
    try:
        this.all(tuple(jobs(options)), device=has_device() if device is None else device)
    finally:
        signal.signal(signal.SIGTERM, previous)
        this.stop()
        this.gather()
    finish(options)


def _leave(*_: Any) -> None:
    raise SystemExit(143)
