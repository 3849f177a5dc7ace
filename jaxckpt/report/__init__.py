"""Reports: trees of tables, sentences and scatters built from data, and their lowering to text and to HTML.

Read in this order: `tree` (what a report is), `text`, `html` and `svg` (how it is drawn), `rows` (what tables have in
common), then one builder a file: `plan`, `machines`, `memory`, `comparison`, `checks`, `oom`, `search`;
`trace_events` (a footprint for Perfetto), and the folder `picture` (the memory map).
"""

from jaxckpt.report.checks import findings_report, verification_report
from jaxckpt.report.comparison import comparison_data, comparison_report, to_csv, verdicts_report
from jaxckpt.report.html import (
    html_of,
    render_html,
    render_page,
    report_of,
    require_report_folder,
    save_page,
    save_text,
    text_of,
)
from jaxckpt.report.machines import calibration_report, targets_report
from jaxckpt.report.memory import footprint_report
from jaxckpt.report.oom import floor_report, oom_report
from jaxckpt.report.plan import analysis_report, explanation_report, plan_check_report, plan_report, policy_report
from jaxckpt.report.rows import table_of_known
from jaxckpt.report.search import batches_report, frontier_report
from jaxckpt.report.text import print_report, render_text
from jaxckpt.report.tree import Chart, Column, Element, Line, Point, Scatter, Section, Table, Text

__all__ = [
    "Chart",
    "Column",
    "Element",
    "Line",
    "Point",
    "Scatter",
    "Section",
    "Table",
    "Text",
    "analysis_report",
    "batches_report",
    "calibration_report",
    "comparison_data",
    "comparison_report",
    "explanation_report",
    "findings_report",
    "floor_report",
    "footprint_report",
    "frontier_report",
    "html_of",
    "oom_report",
    "plan_check_report",
    "plan_report",
    "policy_report",
    "print_report",
    "render_html",
    "render_page",
    "render_text",
    "report_of",
    "require_report_folder",
    "save_page",
    "save_text",
    "table_of_known",
    "targets_report",
    "text_of",
    "to_csv",
    "verdicts_report",
    "verification_report",
]
