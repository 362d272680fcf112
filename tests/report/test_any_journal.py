"""Whatever stands in a journal, there is a report."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.report.facts import gather
from supervisor.report.render import render_html, render_json, render_markdown
from supervisor.storage.events import EVENT_KINDS
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
    {"kind": st.sampled_from(EVENT_KINDS)}, optional=dict.fromkeys(FIELDS, VALUES)
)


@settings(max_examples=40, deadline=None)
@given(events=st.lists(EVENTS, max_size=8))
def test_any_events_give_a_report_in_strict_json(events: list[dict[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = SyntheticRun(Path(folder))
        run.begin(1)
        run.steps(0, 20)
        with run.rundir.journal.open("a") as journal:
            journal.writelines(json.dumps(event) + "\n" for event in events)

        report = gather(folder)

    assert json.loads(render_json(report))["verdict"]
    assert report.title in render_html(report)
    assert report.title in render_markdown(report)
