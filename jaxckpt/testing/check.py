"""The snapshot fixture: measures a step, compares it with its snapshot, and writes or accepts a new one on request.

Read after `file` and `change`.
"""

import enum
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxckpt._errors import FootprintAssertionError, SnapshotFileError
from jaxckpt._step import Step
from jaxckpt._units import format_bytes
from jaxckpt.compiler import Footprint
from jaxckpt.machine import Target
from jaxckpt.report import render_text
from jaxckpt.report.rows import signed_bytes
from jaxckpt.testing.change import Change, change_report, signed_share, tolerance_from
from jaxckpt.testing.file import Owner, load_snapshot, save_snapshot, snapshot_path
from jaxckpt.testing.fits import measured
from jaxckpt.testing.snapshot import DEPTH, Snapshot, snapshot_from_footprint


class WriteMode(enum.StrEnum):
    """Which snapshots may be written."""

    WRITE = enum.auto()
    """Snapshots that are missing."""
    STRICT = enum.auto()
    """Nothing: a missing snapshot fails."""
    UPDATE = enum.auto()
    """All that changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotCheck:
    """The value of the fixture `jaxckpt_snapshot`: call it with a step or a footprint.

    Attributes:
      module: The file of tests.
      test: The test in this file, with its classes and parameters.
      mode: Which snapshots may be written.
      say: Called with sentences for the end of the run.

    Example:
      >>> import pathlib, tempfile, jaxckpt
      >>> from dataclasses import replace
      >>> from jaxckpt.testing import SnapshotCheck
      >>> made = jaxckpt.Footprint(argument_bytes=8, output_bytes=8, alias_bytes=8, temp_bytes=64, target="h200")
      >>> module = pathlib.Path(tempfile.mkdtemp(), "test_step.py")
      >>> first_run = SnapshotCheck(module=module, test="test_step")
      >>> first_run(made).total_bytes
      test_step: 72 B on h200, written; commit it: ...__footprints__/test_step/test_step.toml
      72
      >>> second_run = SnapshotCheck(module=module, test="test_step")
      >>> second_run(replace(made, temp_bytes=128), tolerance_bytes=0)
      Traceback (most recent call last):
      ...
      jaxckpt._errors.FootprintAssertionError: jaxckpt_snapshot in test_step: the step takes more memory than ...
      ...
    """

    module: Path
    test: str
    mode: WriteMode = WriteMode.WRITE
    say: Callable[[str], None] = print
    _names: set[str] = field(default_factory=set)

    def __call__(
        self,
        step: Callable[..., Any] | Step | Footprint,
        *args: Any,
        name: str = "",
        tolerance: float = 0.01,
        tolerance_bytes: str | int = "1MiB",
        depth: int = DEPTH,
        target: Target | str | None = None,
        donate_argnums: int | Sequence[int] = (),
        static_argnums: int | Sequence[int] = (),
        compiler_options: Sequence[tuple[str, Any]] = (),
    ) -> Footprint:
        """Asserts that a step takes no more memory than its snapshot says, within a tolerance.

        Less memory passes, and the end of the run says so. A missing snapshot is written, or fails in strict mode.

        Args:
          step: As `jaxckpt.footprint`; or a footprint, which takes no arguments, target and options.
          *args: As `jaxckpt.footprint`.
          name: Tells the snapshots of one test apart.
          tolerance: Share of the snapshot's total (and of its host memory) by which it may grow.
          tolerance_bytes: Growth that is accepted in any case; the larger of both counts.
          depth: To which names of scopes bytes are kept; an existing snapshot is compared at its own.
          target: The machine, or its name; by default "h200". The device need not be attached.
          donate_argnums: As `jaxckpt.footprint`.
          static_argnums: As `jaxckpt.footprint`.
          compiler_options: As `jaxckpt.footprint`.

        Returns:
          The footprint, for more assertions.

        Raises:
          FootprintAssertionError: The step takes more, or the snapshot is of another target.
          SnapshotFileError: The snapshot is damaged, foreign, missing in strict mode, or asked for twice.
          BudgetError: The tolerance is none.
        """
        __tracebackhide__ = True
        accepted = tolerance_from(tolerance, tolerance_bytes)
        owner = Owner(test=self.test, name=name)
        path = snapshot_path(self.module, owner)
        self._claim(owner)
        before = self._before(path, owner)
        made = measured(
            "jaxckpt_snapshot(footprint)",
            step,
            args,
            target,
            donate_argnums=donate_argnums,
            static_argnums=static_argnums,
            compiler_options=compiler_options,
        )
        if before is None or self.mode is WriteMode.UPDATE:
            self._write(snapshot_from_footprint(made, depth=depth), before, path, owner)
            return made
        after = snapshot_from_footprint(made, depth=before.depth)
        change = Change(before=before, after=after, tolerance=accepted)
        if before.target != after.target:
            raise _other_target(change, owner, path)
        if change.is_costlier:
            raise _costlier(change, self._node(), owner, path)
        if change.total_bytes < 0:
            self.say(_less(change, owner))
        return made

    def _claim(self, owner: Owner) -> None:
        if owner.name in self._names:
            raise SnapshotFileError(
                f"jaxckpt_snapshot in {owner.test}: two snapshots of one name.",
                got=f"name={owner.name!r} twice",
                needed="one name a snapshot",
                advice='jaxckpt_snapshot(..., name="forward")',
                path=snapshot_path(self.module, owner),
            )
        self._names.add(owner.name)

    def _before(self, path: Path, owner: Owner) -> Snapshot | None:
        """The saved snapshot; None where it is missing and may be written."""
        if not path.exists():
            if self.mode is WriteMode.STRICT:
                raise _missing(self._node(), owner, path)
            return None
        try:
            return load_snapshot(path, owner=owner)
        except SnapshotFileError:
            if self.mode is WriteMode.UPDATE:  # which is how a damaged one is mended
                return None
            raise

    def _write(self, after: Snapshot, before: Snapshot | None, path: Path, owner: Owner) -> None:
        if after == before:
            return
        is_new = not path.exists()
        save_snapshot(after, path, owner=owner)
        was = "" if before is None else f" (was {format_bytes(before.total_bytes)} on {before.target})"
        done = "written; commit it" if is_new else "updated"
        self.say(f"{owner}: {format_bytes(after.total_bytes)} on {after.target}{was}, {done}: {path}")

    def _node(self) -> str:
        """Id of the test as pytest prints it, relative to the folder that pytest was started in."""
        return f"{os.path.relpath(self.module)}::{self.test}"


def _missing(node: str, owner: Owner, path: Path) -> SnapshotFileError:
    return SnapshotFileError(
        f"jaxckpt_snapshot in {owner}: there is no snapshot.",
        got=f"no file {path}",
        needed="a committed snapshot: on CI (CI is set) and with --jaxckpt-strict none is written",
        advice=f'run pytest on "{node}" on your own machine without --jaxckpt-strict, and commit the file it writes',
        path=path,
    )


def _costlier(change: Change, node: str, owner: Owner, path: Path) -> FootprintAssertionError:
    before, after = change.before, change.after
    share = signed_share(change.total_bytes, before.total_bytes)
    growth = f"{signed_bytes(change.total_bytes)} ({share})" if change.total_bytes else "as before"
    got = f"{format_bytes(after.total_bytes)} on {after.target}, {growth}"
    most_bytes = before.total_bytes + change.tolerance.allowed_bytes(before.total_bytes)
    needed = f"at most {format_bytes(most_bytes)}: the snapshot's {format_bytes(before.total_bytes)}"
    if change.host_bytes:
        host_bytes = before.host_bytes + change.tolerance.allowed_bytes(before.host_bytes)
        got += f"; host memory {format_bytes(after.host_bytes)}, {signed_bytes(change.host_bytes)}"
        needed += f", at most {format_bytes(host_bytes)} of host memory,"
    return FootprintAssertionError(
        f"jaxckpt_snapshot in {owner}: the step takes more memory than its snapshot.",
        got=got,
        needed=f"{needed} and the tolerance ({change.tolerance})",
        advice=f'pytest "{node}" --jaxckpt-update, if this is meant',
        table=render_text(change_report(change), width=110).rstrip(),
        change=change,
        path=path,
    )


def _other_target(change: Change, owner: Owner, path: Path) -> FootprintAssertionError:
    return FootprintAssertionError(
        f"jaxckpt_snapshot in {owner}: the snapshot is of another machine.",
        got=f"{change.after.target}, {format_bytes(change.after.total_bytes)}",
        needed=f"{change.before.target}, {format_bytes(change.before.total_bytes)}, as in {path}",
        advice=f'name="{change.after.target}" for a snapshot of its own, or pytest --jaxckpt-update',
        table="",
        change=change,
        path=path,
    )


def _less(change: Change, owner: Owner) -> str:
    share = signed_share(change.total_bytes, change.before.total_bytes)
    return (
        f"{owner}: {format_bytes(change.after.total_bytes)}, {signed_bytes(change.total_bytes)} ({share}) beside its"
        " snapshot; --jaxckpt-update keeps it from growing back"
    )
