"""Whatever stands in a journal, there is a report."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.events.parsing import KINDS
from supervisor.report.facts.crash_report import CrashReport
from supervisor.report.gathering import gather
from supervisor.report.render import render_html, render_json, render_markdown
from supervisor.storage.journal.events import count_treatments, read_journal
from tests.journals import read_raw
from tests.report.synthetic_run import SyntheticRun

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 200),
    st.floats(),
    st.sampled_from(["", "nan", "killed", "nonfinite", "completed", "restart", "rollback", "<b>"]),
    st.lists(st.text(max_size=5), max_size=2),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)
FIELDS = ("step", "attempt", "time", "cause", "name", "severity", "message", "cost_s", "last_step",
          "evidence", "from_step", "to_step", "exactness", "outcome", "alarm", "applied", "signum",
          "probability", "next_attempt", "phase", "applied_at", "state", "detail")  # fmt: skip
EVENTS = st.fixed_dictionaries(
    {"kind": st.sampled_from(sorted(KINDS))}, optional=dict.fromkeys(FIELDS, VALUES)
)


@settings(max_examples=40, deadline=None)
@given(events=st.lists(EVENTS, max_size=8))
def test_any_events_give_a_report_in_strict_json(events: list[dict[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = SyntheticRun(Path(folder))
        run.start(1)
        run.steps(0, 20)
        with run.rundir.journal.open("a") as journal:
            journal.writelines(json.dumps(event) + "\n" for event in events)

        report = gather(folder)

        recorded, counted = read_raw(run.rundir.journal), read_journal(run.rundir.journal)

    page, text = render_html(report), render_markdown(report)
    treated = sum(count_treatments(counted).values())
    assert json.loads(render_json(report))["verdict"]
    assert sum(report.treatments.values()) == treated
    _agrees_with_itself(report, page)
    if not re.search("nan|nonfinite|infinity", json.dumps(recorded), re.IGNORECASE):
        assert "non-finite" not in text  # all recorded steps are finite
        assert "nonfinite" not in text
    assert report.title in page
    assert report.title in text


def _agrees_with_itself(report: CrashReport, page: str) -> None:
    """Headline, colour and root cause tell the same."""
    is_sick = any(not incident.survived for incident in report.incidents)
    if report.end == "completed":
        is_bad = is_sick or any(one.is_bad for one in report.shortfalls)
        assert ('<header class="bad">' in page) == is_bad
        assert ('<header class="good">' in page) <= (not report.shortfalls)
        assert (report.title == "Completed, not healthy") == is_sick
        assert report.overcome <= (bool(report.incidents) and not is_sick)
    if report.root_cause == "none":
        assert not report.incidents
        assert not report.shortfalls
        assert not report.overcome
    elif report.overcome:
        assert f"overcome: {report.root_cause.replace('_', ' ')}" in page
        told = report.root_cause_sentence.rstrip(".")
        assert told[1:] in report.verdict
