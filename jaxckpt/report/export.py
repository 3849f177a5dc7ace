"""A comparison for other programs: CSV of one figure a row, and one JSON object of everything.

Read after `comparison`.
"""

import csv
import dataclasses
import io
from typing import Any

from jaxckpt.comparison import BufferChange, Comparison, Row, comparison_rows


def to_csv(comparison: Comparison) -> str:
    """All figures, one a row, under the names of `jaxckpt.comparison.Row`.

    Example:
      >>> from jaxckpt.compiler import Footprint
      >>> from jaxckpt.comparison import compare_footprints
      >>> made = Footprint(argument_bytes=1, output_bytes=0, alias_bytes=0, temp_bytes=7)
      >>> to_csv(compare_footprints({"a": made})).splitlines()[:2]
      ['version,table,scope,what,figure,value', 'a,total,,,total_bytes,8']
    """
    stream = io.StringIO()
    writer = csv.DictWriter(stream, fieldnames=list(Row.__annotations__), lineterminator="\n")
    writer.writeheader()
    writer.writerows(comparison_rows(comparison))
    return stream.getvalue()


def comparison_data(comparison: Comparison) -> dict[str, Any]:
    """Everything but the versions' memory maps, as numbers, texts and lists: one JSON object."""
    return {
        "versions": [
            {
                "name": version.name,
                "total_bytes": version.footprint.total_bytes,
                "host_bytes": version.footprint.host_bytes,
                "peak_bytes": version.footprint.memory.peak_bytes if version.footprint.memory else None,
                "footprint": version.footprint.to_dict(),
            }
            for version in comparison.versions
        ],
        "scopes": [dataclasses.asdict(line) for line in comparison.scopes],
        "peaks": [
            {"name": peak.name, "went": _changes(peak.went), "came": _changes(peak.came)} for peak in comparison.peaks
        ],
        "recomputed": [dataclasses.asdict(op) for op in comparison.recomputed],
        "frontier": list(comparison.frontier),
        "notes": list(comparison.notes),
    }


def _changes(changes: tuple[BufferChange, ...]) -> list[dict[str, Any]]:
    return [dataclasses.asdict(change) | {"change_bytes": change.change_bytes} for change in changes]
