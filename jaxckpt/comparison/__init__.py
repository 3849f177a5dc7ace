"""Versions side by side: steps, plans, policies, saved footprints and foreign programs, with their differences.

Read in this order: `comparison` (of footprints), `versions` (anything as a footprint); then `verdict` (the worth of
each rule of a policy).
"""

from jaxckpt.comparison.comparison import (
    BufferChange as BufferChange,
    ComparedVersion as ComparedVersion,
    Comparison as Comparison,
    PeakBuffer as PeakBuffer,
    PeakChange as PeakChange,
    RecomputedOp as RecomputedOp,
    Row as Row,
    ScopeFigures as ScopeFigures,
    compare_footprints as compare_footprints,
    comparison_rows as comparison_rows,
    peak_changes as peak_changes,
)
from jaxckpt.comparison.verdict import Verdict as Verdict, Verdicts as Verdicts, verdicts as verdicts
from jaxckpt.comparison.versions import Version as Version, compare as compare, footprint_of_path as footprint_of_path
