"""`python -m benchmarks.attached`: everything that one attached device can answer, within a budget of seconds."""

import argparse
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.attached.parent import RESULT, Options, attached_target, has_device, run
from benchmarks.attached.store import HEADLINE

OUT = Path(__file__).parents[1] / "results" / "attached"


def options_from(arguments: Sequence[str] | None, *, device: bool, scratch: Path) -> Options:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attached", description="Ask one attached device.")
    parser.add_argument("--seconds", type=float, default=540.0, help="what all of it may take")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the result; one that is there is gone on with")
    parser.add_argument(
        "--models", nargs="+", default=None, help=f"the first one is asked about whole; {HEADLINE}: batches"
    )
    parser.add_argument(
        "--target", default=None, help="what to compile for without the device; its own name, or cpu if small"
    )
    parser.add_argument("--small", action="store_true", help="tiny sizes: a smoke test, as it is without a device")
    parser.add_argument("--planners", type=int, default=max(1, min(4, (os.cpu_count() or 1) // 4)))
    parser.add_argument("--calibrate-s", type=float, default=None, help="of these, for the calibration")
    parser.add_argument("--scratch", type=Path, default=scratch, help="folder for plans and logs")
    given = parser.parse_args(arguments)
    small = given.small or not device
    return Options(
        seconds=given.seconds,
        out=given.out,
        scratch=given.scratch,
        target=given.target or ("cpu" if small else attached_target()),
        models=tuple(given.models or default_models(small=small)),
        small=small,
        planners=given.planners,
        calibrate_s=given.calibrate_s or min(60.0, 0.12 * given.seconds),
    )


def default_models(*, small: bool) -> tuple[str, ...]:
    """All of them on a device; two and the largest batch for a smoke test."""
    from benchmarks.attached.questions import ORDER

    return (*ORDER[:2], HEADLINE) if small else ORDER


def finish(options: Options) -> None:
    """Prints what was found, and writes the tables and the rates that follow."""
    os.environ["JAX_PLATFORMS"] = "cpu"  # the device may still be another process's
    from benchmarks.attached import findings
    from benchmarks.attached.tables import tables

    data = json.loads((options.out / RESULT).read_text())
    parts = data["parts"]
    text = "\n".join(f"## {name}\n\n{table}" for name, table in tables(data).items())
    (options.out / "attached.md").write_text(text)
    kind = parts.get("device", {}).get("kind", "device").replace(" ", "-").lower()
    for name, made in ((kind, findings.calibration(parts)), (f"{kind}-fitted", findings.fitted_calibration(parts))):
        if made is not None:
            made.save(options.out / f"{name}.toml")
    print("\n".join(["", *summary(parts, small=options.small), f"kept in {options.out}"]), flush=True)
    if options.small:
        print("This was a smoke test with tiny sizes: its figures mean nothing.", flush=True)


def summary(parts: Mapping[str, Mapping[str, Any]], *, small: bool) -> list[str]:
    """The verdicts, a line each, and what failed."""
    from benchmarks.attached import findings

    signs = {True: "smoke", False: "smoke", None: "-----"} if small else {True: "holds", False: "FAILS", None: "-----"}
    lines = [f"{signs[holds]}  {claim}: {found or 'not measured'}" for claim, found, holds in findings.verdicts(parts)]
    return [*lines, *(f"no answer: {path}: {said}" for path, said in findings.failures(parts))]


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs it all."""
    device = has_device()
    with tempfile.TemporaryDirectory(prefix="jaxckpt-attached-", ignore_cleanup_errors=True) as scratch:
        options = options_from(arguments, device=device, scratch=Path(scratch))
        if options.small:
            print(f"{'' if device else 'No GPU here: '}a smoke test with tiny sizes, whose figures mean nothing.")
        run(options, finish=finish, device=device)


if __name__ == "__main__":
    main()
