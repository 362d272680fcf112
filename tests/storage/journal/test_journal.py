"""A journal of a run that has much to say stays small, and its counts stay true."""

from __future__ import annotations

import errno
import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.events.event import JournalEvent, of_kind
from supervisor.events.step_events import AlertEvent, RollbackEvent
from supervisor.records import Alert, Cause, Severity
from supervisor.report.facts.crash_report import summarise_alerts
from supervisor.settings import LimitSettings
from supervisor.storage.files.kept_writes import KeptWrites
from supervisor.storage.journal import journal as journal_module
from supervisor.storage.journal.events import count_treatments
from supervisor.storage.journal.journal import ALERT_GAP_STEPS, AlertLog, Journal, read_journal
from tests.journals import event, read_raw


def journal_at(path: Path) -> Journal:
    return Journal(path, attempt=2, rank=1, clock=lambda: 1_700_000_000.25)


def test_an_event_is_one_line_with_its_fields(tmp_path: Path) -> None:
    path = tmp_path / "events" / "rank_1.jsonl"

    went_back = RollbackEvent(
        step=9, from_step=9, to_step=4, cause=Cause.SPIKE, name="rollback", before_step=10
    )

    journal_at(path).write(went_back)

    assert json.loads(path.read_text()) == {
        "time": "2023-11-14T22:13:20.250000+00:00",
        "attempt": 2,
        "rank": 1,
        "step": 9,
        "kind": "rollback",
        "from_step": 9,
        "to_step": 4,
        "cause": "spike",
        "name": "rollback",
        "before_step": 10,
    }
    assert path.stat().st_mode & 0o777 == 0o600


def test_figures_that_json_lacks_are_strings_that_float_reads(tmp_path: Path) -> None:
    path = tmp_path / "j"

    figures = {"values": [math.inf, -math.inf], "norm": np.float32(0.5), "n": np.int64(3)}
    journal_at(path).write(event("alert", value=math.nan, metadata=figures))

    line = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert (line["value"], line["metadata"]["values"]) == ("nan", ["inf", "-inf"])
    assert math.isnan(float(line["value"]))
    assert (line["metadata"]["norm"], line["metadata"]["n"]) == (0.5, 3)


@pytest.mark.parametrize("tail", [b'{"kind": "warn', b"\x00\xff\xfe", b"[1, 2]", b"17"])
def test_a_torn_or_garbage_end_costs_only_itself(tail: bytes, tmp_path: Path) -> None:
    path = tmp_path / "j"
    journal = journal_at(path)
    journal.write(event("warning", message="one"))
    journal.close()
    with open(path, "ab") as file:
        file.write(tail)

    before = read_raw(path)
    journal_at(path).write(event("warning", message="two"))

    assert [event["message"] for event in before] == ["one"]
    assert [event["message"] for event in read_raw(path)] == ["one", "two"]


@settings(max_examples=40, deadline=None)
@given(cut=st.integers(0, 400), junk=st.binary(max_size=20))
def test_a_journal_cut_anywhere_is_read_without_error(
    cut: int, junk: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("j") / "events.jsonl"
    journal = journal_at(path)
    for number in range(4):
        journal.write(event("warning", step=number))
    journal.close()
    data = path.read_bytes()
    path.write_bytes(data[:cut] + junk)

    events = read_raw(path)

    whole = data[:cut].count(b"\n")
    assert [event["step"] for event in events[:whole]] == list(range(whole))


def test_a_journal_that_does_not_exist_has_no_events(tmp_path: Path) -> None:
    assert read_raw(tmp_path / "none.jsonl") == []


@pytest.mark.parametrize(
    ("room", "messages"),
    [
        (1 << 20, ["one", "refused", "refused", "two"]),
        (0, ["one", "2 events before this one could not be written", "two"]),
    ],
)
def test_a_full_disk_costs_no_lines_but_those_that_memory_has_no_room_for(
    room: int, messages: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, kept = tmp_path / "j", KeptWrites(room)
    monkeypatch.setattr(journal_module, "KEPT", kept)
    journal = journal_at(path)
    real_write = os.write

    def full(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    def half(fd: int, data: bytes) -> int:
        return real_write(fd, data[: len(data) // 2])

    written = [journal.write(event("warning", message="one"))]
    for failing in (full, half):
        monkeypatch.setattr(os, "write", failing)
        written.append(journal.write(event("warning", message="refused")))
    monkeypatch.setattr(os, "write", real_write)
    written.append(journal.write(event("warning", message="two")))

    assert kept.try_again(now=True)
    assert written == [True, bool(room), bool(room), True]
    assert [event["message"] for event in read_raw(path)] == messages


def test_alerts_are_lines_with_all_their_fields(tmp_path: Path) -> None:
    alert = Alert(
        detector="loss_spike",
        severity=Severity.HIGH,
        category="loss",
        kind="loss_spike",
        cause=Cause.SPIKE,
        message="loss 9.1 is far above 2.0",
        step=3,
        value=math.inf,
    )
    log = AlertLog(tmp_path / "alerts.jsonl")

    log.write(alert)
    log.close()

    line = json.loads((tmp_path / "alerts.jsonl").read_text())
    assert line == {**alert.to_dict(), "value": "inf", "threshold": "nan"}


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
