"""Versions side by side: steps, plans, policies, saved footprints and foreign programs, and what differs between them.

Read in this order: `comparison` (the data), `differences` (how footprints are held against each other), `compare`
(how anything becomes a footprint), `rows` (the same for spreadsheets and frames); then `verdict` and `verdicts` (what
each rule is worth); `trained`, `evictions` and `address_maps` (rules of eviction).
"""

from jaxckpt.versus.address_maps import address_maps
from jaxckpt.versus.compare import StepCall, Version, compare, footprint_of_path
from jaxckpt.versus.comparison import (
    BufferChange,
    ComparedVersion,
    Comparison,
    PeakBuffer,
    PeakChange,
    RecomputedOp,
    ScopeFigures,
)
from jaxckpt.versus.differences import compare_footprints, peak_changes
from jaxckpt.versus.evictions import EvictionRow, Evictions, compare_evictors
from jaxckpt.versus.rows import Row, comparison_frame, comparison_rows
from jaxckpt.versus.verdict import Verdict, Verdicts
from jaxckpt.versus.verdicts import verdicts

__all__ = [
    "BufferChange",
    "ComparedVersion",
    "Comparison",
    "EvictionRow",
    "Evictions",
    "PeakBuffer",
    "PeakChange",
    "RecomputedOp",
    "Row",
    "ScopeFigures",
    "StepCall",
    "Verdict",
    "Verdicts",
    "Version",
    "address_maps",
    "compare",
    "compare_evictors",
    "compare_footprints",
    "comparison_frame",
    "comparison_rows",
    "footprint_of_path",
    "peak_changes",
    "verdicts",
]
