"""Reports: trees of tables and sentences built from data, and their lowering to text.

Read in this order: `tree` (what a report is), `text` (how it is drawn), then one builder a file: `plan`,
`analysis`, `footprints`, `machines`.
"""

from jaxckpt.report.analysis import analysis_report
from jaxckpt.report.footprints import Version, footprints_report
from jaxckpt.report.machines import targets_report
from jaxckpt.report.plan import plan_report
from jaxckpt.report.text import print_report, render_text
from jaxckpt.report.tree import Column, Part, Section, Table, Text

__all__ = [
    "Column",
    "Part",
    "Section",
    "Table",
    "Text",
    "Version",
    "analysis_report",
    "footprints_report",
    "plan_report",
    "print_report",
    "render_text",
    "targets_report",
]
