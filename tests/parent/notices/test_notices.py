"""From the journal's events to what is told."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from supervisor.errors import ConfigError
from supervisor.events.event import JournalEvent
from supervisor.events.parsing import parse_event
from supervisor.parent.notices import notices as module
from supervisor.parent.notices.notice import Notice
from supervisor.parent.notices.notices import Notices, Notifier, notices_for
from supervisor.parent.notices.recipient import Recipient, make_recipients
from supervisor.settings import NOTICE_EVENTS, NotifySettings
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
        event("alert", category="mistake", severity="high", message="x", fact="train.py:3: y"),
        event("alert", category="loss", severity="high", message="x"),
        event("hang_detected", evidence=["no step for 60 s"], frames=[], stacks="x"),
        event("run_finished", state="completed", exit_code=0, reason="done", attempts=2),
        event("run_finished", state="gave_up", exit_code=70, reason="crash limit", attempts=2),
        event("run_finished", state="interrupted", exit_code=75, reason="SIGTERM", attempts=2),
    ) == [
        ("treated", "cut_lr at step 5: the loss rose"),
        ("restart", "starts attempt 2: killed"),
        ("mistake", "trains with a mistake of the script: train.py:3: y"),
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


def notice(event: str = "treated", step: int = 1) -> Notice:
    return Notice(event=event, run=Path("r"), text="text", attempt=1, step=step)


def test_a_server_that_fails_is_asked_again() -> None:
    with running(Hook(503, 500)) as hook:
        recipients = make_recipients(NotifySettings(webhook=hook.url))
        notifier = Notifier(recipients, NOTICE_EVENTS, at_least_s=0.0, waits_s=(0.0, 0.0, 0.0))
        notifier.tell(notice())
        while not hook.got:  # the end hurries: it tries once more, not three times
            time.sleep(0.01)
        notifier.close()

    assert [got["step"] for got in hook.got] == [1]
    assert notifier.problems() == []


def test_what_cannot_be_told_is_said_without_the_address() -> None:
    hook = Hook()
    hook.server_close()  # nobody listens there now
    [recipient] = make_recipients(NotifySettings(webhook=hook.url))

    def send(told: Notice) -> None:
        try:
            recipient.send(told)
        except OSError as error:
            raise OSError(f"{hook.url}: {error}") from error

    notifier = Notifier(
        [Recipient(recipient.name, send, secret=hook.url)],
        ["treated"],
        at_least_s=0.0,
        waits_s=(0.0,),
    )
    notifier.tell(notice())
    notifier.close()

    [problem] = notifier.problems()
    assert problem.startswith("notify.webhook: treated was not told: ***: ")
    assert "refused" in problem


def test_notices_of_one_event_are_limited_counted_and_the_end_is_told() -> None:
    sent: list[Notice] = []
    now = [0.0]
    notifier = Notifier(
        [Recipient("x", sent.append)], NOTICE_EVENTS, at_least_s=60.0, clock=lambda: now[0]
    )
    for step, at_s in enumerate((0.0, 1.0, 2.0, 61.0, 62.0)):
        now[0] = at_s
        notifier.tell(notice(step=step))
    notifier.tell(notice("completed"))
    notifier.tell(notice("completed"))
    notifier.close()

    assert [(one.event, one.step, one.left_out) for one in sent] == [
        ("treated", 0, {}),
        ("treated", 3, {"treated": 2}),
        ("completed", 1, {"treated": 1}),
        ("completed", 1, {}),
    ]


def test_events_that_nobody_asked_for_start_no_thread() -> None:
    notifier = Notifier([Recipient("x", lambda told: None)], ["hang"], at_least_s=0.0)

    notifier.tell(notice("treated"))

    assert "notices" not in [thread.name for thread in threading.enumerate()]
    notifier.close()


def test_a_server_that_never_answers_holds_up_nobody() -> None:
    stuck = threading.Event()
    notifier = Notifier(
        [Recipient("x", lambda told: stuck.wait() and None)], ["treated"], at_least_s=0.0
    )
    before = time.monotonic()

    for step in range(300):
        notifier.tell(notice(step=step))
    told_s = time.monotonic() - before
    notifier.close(wait_s=0.05)

    assert told_s < 5.0
    assert "not all were sent within 0.05 s" in notifier.problems()[0]
    stuck.set()
