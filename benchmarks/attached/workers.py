"""What each process of a run does; the parent starts them with the right environment.

A planner sees no device: it is told so before jax is loaded, by its environment. What has the device takes nearly all
of its memory at once, as training does.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

from benchmarks.attached.headline import plan_headline, run_headline
from benchmarks.attached.parent import OTHER_DEVICE
from benchmarks.attached.planning import plan_group
from benchmarks.attached.questions import BY_HAND, NONE, Group, groups
from benchmarks.attached.running import memory_statistics, run_group
from benchmarks.attached.store import HEADLINE, Store
from benchmarks.attached.strangers import RULES
from jaxckpt import Target, TargetError
from jaxckpt.calibration import calibrate
from jaxckpt.calibration.session import driver_of, installed_versions, platform_of
from jaxckpt.machine import calibration_from_toml, toml_from_calibration


def calibrate_device(store: Store, *, seconds: float, small: bool) -> None:
    """What the device is, and how fast.

    Raises:
      SystemExit: The answers that are there already are of another device.
    """
    known = store.get("device") or {}
    now = store.record("device", make=described_device)
    if known and known.get("device_kind") != now.get("device_kind"):
        store.put("device", part=known)
        print(f"the result is of {known.get('device_kind')}, this is {now.get('device_kind')}: use another --out")
        raise SystemExit(OTHER_DEVICE)
    if not store.has("calibration"):
        store.record("calibration", make=lambda: measured_calibration(seconds, small))


def described_device() -> dict[str, Any]:
    """The device's name and driver, and how much memory a program may have."""
    device = jax.local_devices()[0]
    return {
        "device_kind": device.device_kind,
        "platform": platform_of(device),
        "driver": driver_of(device),
        "device_count": jax.local_device_count(),
        "versions": dict(installed_versions()),
        "kind": "cpu" if device.platform == "cpu" else Target("attached").kind,
        "memory": memory_statistics(),
    }


def measured_calibration(seconds: float, small: bool) -> dict[str, Any]:
    """A calibration, as the text of its file."""
    made = calibrate(seconds=seconds, small=small, progress=lambda text: print(text, flush=True))
    return {"toml": toml_from_calibration(made), "seconds": made.seconds, "smoke": made.smoke}


def calibrated_target(store: Store) -> Target:
    """The attached device with the rates that were measured of it, where they could be."""
    part = store.get("calibration") or {}
    if "toml" not in part:
        return Target("attached")
    return Target("attached", calibrated=calibration_from_toml(part["toml"], source="this run's calibration"))


def estimating_target(store: Store) -> Target:
    """What the attached steps are compiled for and estimated with: the rates that the package ships.

    A device in no fact file has no others than those of the calibration.
    """
    target = Target("attached")
    try:
        _ = target.rates
    except TargetError:
        return calibrated_target(store)
    return target


def plan_all(
    store: Store, all_groups: list[Group], target: Target, *, headline: bool, limit_bytes: int, small: bool
) -> None:
    """Jobs that no other planner has taken: the first model's plans, the largest batch if asked for, the rest."""
    for name, group in planning_jobs(all_groups, headline=headline):
        if not store.claim("plan", name):
            continue
        if group is None:
            plan_headline(store, target, limit_bytes=limit_of(store, target, limit_bytes, small=small), small=small)
        else:
            plan_group(group, store, target)


def planning_jobs(all_groups: list[Group], *, headline: bool) -> Iterator[tuple[str, Group | None]]:
    """Names and versions of jobs; the one without versions is the largest batch.

    The first model's plans are several planners' jobs: the device is waiting for them. Those of a step of the battery
    are one job, because they need the totals of its rules.
    """
    first, *others = all_groups
    if first.model in RULES:
        first, others = replace(first, versions=(NONE,)), all_groups
    by_hand = tuple(version for version in first.versions if version in BY_HAND and version != NONE)
    plans = tuple(version for version in first.versions if version not in (*by_hand, NONE))
    yield "first", replace(first, versions=(NONE, *plans[:1]))
    for version in plans[1:]:
        yield version, replace(first, versions=(version,))
    if headline:
        yield HEADLINE, None
    yield "by-hand", replace(first, versions=by_hand)
    yield from ((group.model, group) for group in others)


def limit_of(store: Store, target: Target, limit_bytes: int, *, small: bool, patience_s: float = 60.0) -> int:
    """What a program may have on the device, once the process that has it has said so; else what was given, or all."""
    if limit_bytes:
        return limit_bytes
    if small:
        return 2**20
    until = time.monotonic() + patience_s
    while not store.has("device") and time.monotonic() < until:
        time.sleep(0.2)
    memory = (store.get("device") or {}).get("memory", {})
    return memory.get("bytes_limit", 0) or int(0.9 * target.memory_bytes)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attached.workers")
    parser.add_argument("job", choices=["plan", "calibrate", "run", "headline"])
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--models", nargs="+", required=True)
    parser.add_argument("--model", help="for run: which of them")
    parser.add_argument("--target", default="h200")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--deadline", type=float, default=float("inf"), help="seconds since 1970")
    parser.add_argument("--deadline-from-input", action="store_true", help="wait until standard input says it")
    parser.add_argument("--calibrate-s", type=float, default=60.0)
    parser.add_argument("--limit-bytes", type=int, default=0)
    options = parser.parse_args(arguments)
    if options.deadline_from_input:
        line = sys.stdin.readline()
        if not line:
            return  # the parent ended
        options.deadline = float(line)
    store = Store(folder=options.store)
    all_groups = list(groups(options.models, small=options.small))
    if options.job == "plan":
        target = Target(options.target)
        asked = HEADLINE in options.models
        plan_all(store, all_groups, target, headline=asked, limit_bytes=options.limit_bytes, small=options.small)
    elif options.job == "calibrate":
        calibrate_device(store, seconds=options.calibrate_s, small=options.small)
    elif options.job == "headline":
        run_headline(store, estimating_target(store), small=options.small, deadline=options.deadline)
    else:
        group = next(group for group in all_groups if group.model == options.model)
        run_group(group, store, estimating_target(store), deadline=options.deadline)


if __name__ == "__main__":
    main()
