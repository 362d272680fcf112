"""What of the parent's signals the worker gets, and which of them ask the run to end."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.parent.process.signals import SignalInbox, to_send
from supervisor.storage.run.mailboxes import SignalTimes, arrived_at, stacks_signal

PROGRAM = """
import signal, threading, time
signal.signal(signal.SIGUSR1, print)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
signal.signal(signal.SIGRTMAX - 1, print)
print(flush=True); time.sleep(600)
"""


@pytest.fixture
def pid() -> Iterator[int]:
    line = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(line, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.kill()


@pytest.mark.parametrize(
    ("signum", "sent"),
    [
        (signal.SIGUSR1, signal.SIGUSR1),
        (signal.SIGUSR2, signal.SIGTERM),
        (signal.SIGHUP, signal.SIGHUP),
        (signal.SIGINT, signal.SIGINT),
        (signal.SIGTERM, signal.SIGTERM),
        (signal.SIGKILL, signal.SIGKILL),
        (signal.SIGRTMAX - 1, signal.SIGRTMAX - 1),
        (signal.SIGRTMAX - 2, None),
    ],
)
def test_a_process_gets_no_signal_that_would_only_kill_it(
    pid: int, signum: int, sent: int | None
) -> None:
    assert to_send(pid, signum) == sent


def test_what_the_script_handles_asks_for_no_end_and_ends_it_only_soon() -> None:
    inbox = SignalInbox()
    inbox.note(signal.SIGUSR1)
    request = inbox._requests[0]
    request.passed_on_s = request.at_s

    assert inbox.asked_by is None
    assert inbox.stopped_by(request.at_s + 10.0, grace_s=30.0) == signal.SIGUSR1
    assert inbox.stopped_by(request.at_s + 31.0, grace_s=30.0) is None


def test_a_signal_after_the_end_has_not_ended_it() -> None:
    inbox = SignalInbox()
    inbox.note(signal.SIGTERM)
    at_s = inbox._requests[0].at_s

    assert inbox.stopped_by(at_s - 1.0, grace_s=30.0) is None
    assert inbox.stopped_by(at_s + 1.0, grace_s=30.0) == signal.SIGTERM


def test_a_signal_that_comes_twice_at_once_is_one_request_but_ctrl_c_is_two() -> None:
    twice, typed = SignalInbox(), SignalInbox()

    for _ in range(2):
        twice.note(signal.SIGTERM)
        typed.note(signal.SIGINT)

    assert not twice.is_forced
    assert typed.is_forced


def test_the_board_tells_arrivals_and_the_signal_for_stacks(tmp_path: Path) -> None:
    path = tmp_path / "alive" / "rank_0.signals"
    assert arrived_at(path, 15) == 0.0

    mailbox = SignalTimes(path)
    mailbox.arrived(15, 123.5)
    mailbox.stacks_come_by(63)

    assert (arrived_at(path, 15), arrived_at(path, 10)) == (123.5, 0.0)
    assert stacks_signal(path) == 63
