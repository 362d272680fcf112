"""A journal of a run that has much to say stays small, and its counts stay true."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from supervisor.events.event import JournalEvent, of_kind
from supervisor.events.step_events import AlertEvent
from supervisor.report.facts.alert_summary import summarise_alerts
from supervisor.settings import LimitSettings
from supervisor.storage.files.event_budget import ALERT_GAP_STEPS
from supervisor.storage.journal.journal import Journal, read_journal
from supervisor.storage.journal.treatments import count_treatments
from tests.journals import event

LIMITS = LimitSettings(alerts_at_once=5, treatments_at_once=10, every_steps=100)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "events.jsonl", attempt=1, rank=0, limits=LIMITS)


def alert(journal: Journal, step: int, **fields: Any) -> bool:
    said = {"detector": "loss_anomaly", "alert_kind": "loss_spike", "severity": "medium"}
    return journal.write(event("alert", step=step, **{**said, **fields}))


def events(journal: Journal, path: Path) -> list[JournalEvent]:
    journal.close()
    return read_journal(path / "events.jsonl")


def test_alerts_without_end_are_thinned_and_all_are_counted(
    journal: Journal, tmp_path: Path
) -> None:
    written = sum(alert(journal, step) for step in range(30_000))

    found = events(journal, tmp_path)
    summary = summarise_alerts(of_kind(found, AlertEvent))
    assert written <= 5 + 30_000 / LIMITS.every_steps
    assert len(found) == written + 1
    assert found[-1].step == 29_999
    assert sum(event.times for event in found) == 30_000
    assert summary is not None
    assert (summary.total, summary.left_out) == (30_000, 30_000 - len(found))
    assert summary.by_severity == {"medium": 30_000}


def test_a_rare_alert_is_always_written(journal: Journal) -> None:
    assert all(alert(journal, step) for step in range(0, 30_000, LIMITS.every_steps))


def test_the_same_alert_is_written_once_within_some_steps(journal: Journal) -> None:
    assert [step for step in range(50) if alert(journal, step)] == [0, 20, 40]
    assert ALERT_GAP_STEPS == 20


def test_another_kind_or_a_graver_one_has_an_allowance_of_its_own(journal: Journal) -> None:
    for step in range(1000):
        alert(journal, step)

    assert alert(journal, 1000, severity="critical")
    assert alert(journal, 1000, alert_kind="nonfinite_loss")


def test_after_a_quiet_time_an_incident_is_written_in_full_again(journal: Journal) -> None:
    for step in range(1000):
        alert(journal, step)

    written = [step for step in range(5000, 5100) if alert(journal, step)]

    assert written == [5000, 5020, 5040, 5060, 5080]


def test_treatments_without_end_are_thinned_and_all_are_counted(
    journal: Journal, tmp_path: Path
) -> None:
    for step in range(5000):
        journal.write(event("action", step=step, name="skip_update", cause="x", outcome="applied"))
        journal.write(event("update_skipped", step=step, reason="x"))
    journal.write(event("action", step=5000, name="rollback", cause="x", outcome="applied"))
    journal.write(event("rollback", step=5000, from_step=5000, to_step=4900))

    found = events(journal, tmp_path)
    assert count_treatments(found) == {"skip_update": 5000, "rollback": 1}
    assert len(found) < 200


def test_what_others_rely_on_is_never_left_out(journal: Journal) -> None:
    kinds = ("checkpoint_saved", "rollback", "resumed", "update_skipped")

    assert all(journal.write(event(kind, step=step)) for step in range(1000) for kind in kinds)
    assert all(journal.write(event("warning", message=str(n))) for n in range(1000))
    assert all(journal.write(event("warning", step=n, message="", aloud=True)) for n in range(1000))


def test_steps_that_are_made_again_bring_nothing_in(journal: Journal) -> None:
    written = sum(alert(journal, step) for _ in range(50) for step in range(0, 100, 20))

    assert written <= 5 + 50
