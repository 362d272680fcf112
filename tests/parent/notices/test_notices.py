"""From the journal's events to what is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.errors import ConfigError
from supervisor.events.event import JournalEvent
from supervisor.events.parsing import parse_event
from supervisor.parent.notices import notices as module
from supervisor.parent.notices.notices import Notices, notices_for
from supervisor.settings import NotifySettings
from tests.parent.notices.servers import Hook, running


def event(kind: str, **fields: object) -> JournalEvent:
    head = {"time": "", "attempt": 1, "rank": 0, "step": 5}
    return parse_event({**head, "kind": kind, **fields})


def told_of(*events: JournalEvent) -> list[tuple[str, str]]:
    with running(Hook()) as hook:
        notices = Notices(Path("run"), NotifySettings(webhook=hook.url, at_least_s=0.0))
        notices.saw(events, 1)
        assert notices.close() == []
    return [(got["event"], got["text"]) for got in hook.got]


def test_each_kind_of_news_has_its_event_and_a_sentence() -> None:
    action = {"rung": 1, "cause": "spike", "cost_s": 0.1, "reason": "the loss rose"}

    assert told_of(
        event("action", name="cut_lr", outcome="applied", applied=True, **action),
        event("action", name="checkpoint", outcome="applied", applied=True, **action),
        event("action", name="rollback", outcome="refused", applied=False, **action),
        event("checkpoint_saved"),
        event("restart", next_attempt=2, delay_s=1.0, reason="killed", way="exact"),
        event("hang_detected", evidence=["no step for 60 s"], frames=[], stacks="x"),
        event("run_finished", state="completed", exit_code=0, reason="done", attempts=2),
        event("run_finished", state="gave_up", exit_code=70, reason="crash limit", attempts=2),
        event("run_finished", state="interrupted", exit_code=75, reason="SIGTERM", attempts=2),
    ) == [
        ("treated", "cut_lr at step 5: the loss rose"),
        ("restart", "starts attempt 2: killed"),
        ("hang", "hangs: no step for 60 s"),
        ("completed", "the training ran to its end"),
        ("gave_up", "gave up: crash limit"),
        ("preempted", "ended as asked; `supervisor resume` continues: SIGTERM"),
    ]


def test_a_run_that_stays_in_alarm_is_told_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    told: list[str] = []
    notices = Notices(Path("run"), NotifySettings(sick_after_s=300.0))
    monkeypatch.setattr(notices._notifier, "tell", lambda notice: told.append(notice.text))

    for second in range(0, 1200, 10):
        now[0] = float(second)
        in_alarm = second < 400 and second % 50 == 0  # not at each look
        notices.look(alarm=in_alarm, step=second, attempt=1)

    assert told == ["has been in alarm for 5 minutes"]


def test_an_address_that_is_missing_refuses_a_new_run_and_not_one_that_goes_on() -> None:
    settings = NotifySettings(webhook="env:NOT_THERE")

    with pytest.raises(ConfigError, match="NOT_THERE"):
        notices_for(Path("run"), settings, is_resume=False)
    _, silent = notices_for(Path("run"), settings, is_resume=True)

    assert silent is not None
    assert "NOT_THERE" in silent
