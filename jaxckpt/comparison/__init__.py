"""Versions side by side: steps, plans, policies, saved footprints and foreign programs, with their differences.

Read in this order: `comparison` (the data), `differences` (of footprints), `versions` (anything as a footprint), `rows`
(for spreadsheets and frames); then `verdict` and `ablation` (the worth of each rule of a policy).
"""

from jaxckpt.comparison.ablation import verdicts
from jaxckpt.comparison.comparison import (
    BufferChange,
    ComparedVersion,
    Comparison,
    PeakBuffer,
    PeakChange,
    RecomputedOp,
    ScopeFigures,
)
from jaxckpt.comparison.differences import compare_footprints, peak_changes
from jaxckpt.comparison.rows import Row, comparison_frame, comparison_rows
from jaxckpt.comparison.verdict import Verdict, Verdicts
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
    "comparison_frame",
    "comparison_rows",
    "footprint_of_path",
    "peak_changes",
    "verdicts",
]
