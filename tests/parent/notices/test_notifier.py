"""Sending: tried again, limited, never waited for."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from supervisor.parent.notices.notice import Notice
from supervisor.parent.notices.notifier import Notifier
from supervisor.parent.notices.recipient import Recipient, make_recipients
from supervisor.settings import NOTICE_EVENTS, NotifySettings
from tests.parent.notices.servers import Hook, running


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
