"""For users' own test suites, on machines without a GPU: budgets asserted, footprints kept as snapshots.

`assert_fits` compiles a step for a machine that need not be there and fails where it takes more than a budget. The
pytest fixture `jaxckpt_snapshot` keeps what a step takes as a small file beside the tests and fails where a change
costs more than a tolerance. Both say which layers the bytes are in.

Read in this order: `snapshot` (bytes by scope), `fits`; then `file` (snapshots kept), `change` (two of them), `check`
(what the fixture does), `plugin` (pytest). Nothing is loaded before it is used, since pytest loads plugins at every
start.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxckpt.testing.check import SnapshotCheck
    from jaxckpt.testing.file import load_snapshot, save_snapshot
    from jaxckpt.testing.fits import assert_fits
    from jaxckpt.testing.snapshot import Snapshot, snapshot_from_footprint

_HOMES = {
    "Snapshot": "snapshot",
    "SnapshotCheck": "check",
    "assert_fits": "fits",
    "load_snapshot": "file",
    "save_snapshot": "file",
    "snapshot_from_footprint": "snapshot",
}

__all__ = ["Snapshot", "SnapshotCheck", "assert_fits", "load_snapshot", "save_snapshot", "snapshot_from_footprint"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'jaxckpt.testing' has no attribute {name!r}")
    return getattr(import_module(f"jaxckpt.testing.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
