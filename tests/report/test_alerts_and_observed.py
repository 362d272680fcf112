"""The report sums alerts up, and shows what was observed."""

from __future__ import annotations

import math
from pathlib import Path

from supervisor.events.event import of_kind
from supervisor.events.step_events import AlertEvent
from supervisor.records import StepRecord
from supervisor.report.facts.crash_report import summarise_alerts
from supervisor.report.facts.observed_values import read_courses, sum_up
from supervisor.report.write import write_report
from supervisor.storage.steps.flight_recorder import FlightRecorder
from tests.journals import event
from tests.report.synthetic_run import SyntheticRun


def test_alerts_are_counted_by_severity_worst_first_and_by_category() -> None:
    lines = [
        {"severity": "low", "category": "loss", "step": 3, "detector": "a", "message": "one"},
        {"severity": "high", "category": "reward", "step": 9, "detector": "b", "message": "two"},
        {"severity": "low", "category": "reward", "step": 12, "detector": "a", "message": "three"},
    ]

    summary = summarise_alerts(of_kind([event("alert", **line) for line in lines], AlertEvent))

    assert summary is not None
    assert summary.total == 3
    assert list(summary.by_severity.items()) == [("high", 1), ("low", 2)]
    assert summary.by_category == {"reward": 2, "loss": 1}
    assert [alert.message for alert in summary.latest] == ["three", "two", "one"]
    assert summarise_alerts([]) is None


def test_observed_values_are_summed_up_and_drawn(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "run")
    alert = {"severity": "high", "category": "collapse", "detector": "posterior_collapse"}
    run.event("alert", step=2, message="kl | 0.001", **alert)
    recorder = FlightRecorder(run.rundir.steps(0), attempt=1)
    for step, kl in enumerate((5.0, math.nan, 1.0, 0.001)):
        record = StepRecord(step=step, loss=1.0, loss_seen=True, observed={"kl": kl})
        recorder.append(record, time=run.now + step)
    recorder.close()

    values = sum_up(read_courses(run.rundir.root))
    written = write_report(run.rundir, ("observed",))

    assert [(v.name, v.count, v.first, v.lowest, v.last) for v in values] == [
        ("kl", 3, 5.0, 0.001, 0.001)
    ]
    assert written["observed"].stat().st_size > 5000
    page, text = written["html"].read_text(), written["md"].read_text()
    assert "<h2>Observed values</h2>" in page
    assert "<h2>Alerts</h2>" in page
    assert "1 high" in text
    assert "kl \\| 0.001" in text
