"""Reports: trees of tables, sentences and scatters built from data, and their lowering to text and to HTML.

Read in this order: `tree` (what a report is), `text`, `charts` and `html` (how it is drawn), `rows` (what tables have
in common), then one builder a file: `plan`, `machines`, `memory`, `comparison`, `checks`, `oom`, `search`;
`trace_events` (a footprint for Perfetto), and the folder `picture` (the memory map).
"""

from jaxckpt.report.checks import findings_report as findings_report, verification_report as verification_report
from jaxckpt.report.comparison import (
    comparison_data as comparison_data,
    comparison_report as comparison_report,
    to_csv as to_csv,
    verdicts_report as verdicts_report,
)
from jaxckpt.report.html import (
    html_of as html_of,
    render_html as render_html,
    render_page as render_page,
    report_of as report_of,
    require_report_folder as require_report_folder,
    save_page as save_page,
    save_text as save_text,
    text_of as text_of,
)
from jaxckpt.report.machines import calibration_report as calibration_report, targets_report as targets_report
from jaxckpt.report.memory import footprint_report as footprint_report
from jaxckpt.report.oom import floor_report as floor_report, oom_report as oom_report
from jaxckpt.report.plan import (
    analysis_report as analysis_report,
    explanation_report as explanation_report,
    plan_check_report as plan_check_report,
    plan_report as plan_report,
    policy_report as policy_report,
)
from jaxckpt.report.rows import table_of_known as table_of_known
from jaxckpt.report.search import batches_report as batches_report, frontier_report as frontier_report
from jaxckpt.report.text import print_report as print_report, render_text as render_text
from jaxckpt.report.tree import (
    Chart as Chart,
    Column as Column,
    Element as Element,
    Line as Line,
    Point as Point,
    Scatter as Scatter,
    Section as Section,
    Table as Table,
    Text as Text,
)
