"""Versions side by side: steps, plans, policies, saved footprints and foreign programs, with their differences.

Read in this order: `comparison` (of footprints), `versions` (anything as a footprint); then `verdict` (the worth of
each rule of a policy).
"""

from jaxckpt.comparison.comparison import (
    BufferChange,
    ComparedVersion,
    Comparison,
    PeakBuffer,
    PeakChange,
    RecomputedOp,
    Row,
    ScopeFigures,
    compare_footprints,
    comparison_rows,
    peak_changes,
)
from jaxckpt.comparison.verdict import Verdict, Verdicts, verdicts
from jaxckpt.comparison.versions import Version, compare, footprint_of_path

__all__ = [
    "BufferChange",
    "ComparedVersion",
    "Comparison",
    "PeakBuffer",
    "PeakChange",
    "RecomputedOp",
    "Row",
    "ScopeFigures",
    "Verdict",
    "Verdicts",
    "Version",
    "compare",
    "compare_footprints",
    "comparison_rows",
    "footprint_of_path",
    "peak_changes",
    "verdicts",
]
