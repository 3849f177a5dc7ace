"""What is printed of findings."""

from jaxckpt.linter import Finding, Findings, Location
from jaxckpt.report import findings_report, render_text, report_of

VOID = Finding(
    code="unmatched-rule",
    title="a rule matches nothing",
    where=Location(),
    text="rule 1 matches nothing.",
    fix="Correct it.",
    is_error=True,
)
ADVICE = Finding(
    code="callback-repeated",
    title="a host call inside a checkpoint",
    where=Location(scope="net/block_0", source="net.py:7"),
    text="debug_print stands inside.",
    fix="Move it.",
    count=3,
)


def test_void_findings_stand_apart_from_advice():
    report = findings_report(Findings(step="step", policy="mine", findings=(VOID, ADVICE)))
    assert report.title == 'step under "mine": 1 without effect or wrong, 1 to look at'
    text = " ".join(render_text(report).split())
    assert text.index("Without effect") < text.index("unmatched-rule") < text.index("Advice") < text.index("callback")


def test_places_are_said_once_with_their_number():
    (table, _) = findings_report(Findings(step="step", findings=(ADVICE,))).parts
    assert table.rows[0][1] == "net/block_0 at net.py:7 and 2 more"


def test_that_nothing_was_found_is_said_and_is_no_proof():
    findings = Findings(step="step")
    text = render_text(report_of(findings))
    assert "step: nothing found" in text
    assert "no proof" in text
    assert "nothing found" in findings._repr_html_()
