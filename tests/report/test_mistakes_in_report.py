"""A mistake that was told stands in the report, once a kind, and is no trouble of the numbers."""

from __future__ import annotations

from supervisor.codes import Cause, Severity
from supervisor.events.step_events import AlertEvent
from supervisor.report.facts.crash_report import find_mistakes


def _alert(step: int, category: str, kind: str) -> AlertEvent:
    return AlertEvent(
        step=step,
        detector="mistakes",
        severity=Severity.HIGH,
        category=category,
        cause=Cause.OTHER,
        message=f"train.py:3: {kind}. Mend: x",
        fact=f"train.py:3: {kind}",
        value=float("nan"),
        threshold=float("nan"),
        metadata={"where": "train.py:3", "mend": "x"},
        alert_kind=kind,
    )


def test_each_kind_of_mistake_stands_there_once_with_its_first_step() -> None:
    events = [
        _alert(2, "mistake", "stretched_loss"),
        _alert(3, "loss", "loss_spike"),
        _alert(20, "mistake", "trained_by_nothing"),
        _alert(30, "mistake", "stretched_loss"),
    ]

    found = find_mistakes(events)

    assert [(one.kind, one.step) for one in found] == [
        ("stretched_loss", 2),
        ("trained_by_nothing", 20),
    ]
    assert found[0].where == "train.py:3"
    assert found[0].message == "train.py:3: stretched_loss"
