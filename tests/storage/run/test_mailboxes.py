"""Ranks of a node tell each other a few bytes each step."""

from __future__ import annotations

import multiprocessing
import os
import signal
import struct
import threading
import time
from pathlib import Path

import pytest

from supervisor.storage.run.mailboxes import (
    NOTE_BYTES,
    RankStatus,
    StepMailbox,
    describe_replay,
    read_count,
    replayed_steps,
)

STEPS = 300


def _exchange(path: Path, rank: int, ranks: int, steps: int) -> list[list[bytes] | None]:
    mailbox = StepMailbox(path, rank, ranks)
    told = [mailbox.exchange(f"{rank}:{step}".encode() * (1 + step % 50)) for step in range(steps)]
    mailbox.leave()
    return told


def _worker(path: Path, rank: int, ranks: int, found: multiprocessing.Queue) -> None:  # type: ignore[type-arg]
    found.put(_exchange(path, rank, ranks, STEPS))


def test_every_rank_hears_what_every_rank_has_told(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    found = context.Queue()
    workers = [
        context.Process(target=_worker, args=(tmp_path / "board", rank, 3, found))
        for rank in range(3)
    ]
    for worker in workers:
        worker.start()
    told = [found.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join()

    expected = [
        [f"{rank}:{step}".encode() * (1 + step % 50) for rank in range(3)] for step in range(STEPS)
    ]
    assert told == [expected] * 3


def test_nobody_waits_for_a_rank_that_has_left(tmp_path: Path) -> None:
    first = StepMailbox(tmp_path / "board", 0, 2)
    other = threading.Thread(target=_exchange, args=(tmp_path / "board", 1, 2, 2))
    other.start()

    assert [first.exchange(b"x") for _ in range(3)] == [
        [b"x", b"1:0"],
        [b"x", b"1:1" * 2],
        None,
    ]
    other.join()
    assert first.was_left


def test_a_rank_that_does_not_answer_is_waited_for_until_the_timeout(tmp_path: Path) -> None:
    mailbox = StepMailbox(tmp_path / "board", 0, 2, timeout_s=0.3)
    started = time.monotonic()

    assert mailbox.exchange(b"x") is None
    assert time.monotonic() - started >= 0.3
    assert not mailbox.was_left


def test_a_killed_rank_leaves_no_half_message(tmp_path: Path) -> None:
    path = tmp_path / "board"
    pid = os.fork()
    if pid == 0:
        mailbox = StepMailbox(path, 1, 2)
        mailbox.exchange(b"first")
        os.kill(os.getpid(), signal.SIGKILL)
    mailbox = StepMailbox(path, 0, 2, timeout_s=1.0)

    assert mailbox.exchange(b"a") == [b"a", b"first"]
    assert mailbox.exchange(b"b") is None
    os.waitpid(pid, 0)


def test_a_message_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    mailbox = StepMailbox(tmp_path / "board", 0, 1)

    assert mailbox.exchange(bytes(mailbox.max_bytes)) == [bytes(mailbox.max_bytes)]
    with pytest.raises(ValueError, match="more than"):
        mailbox.exchange(bytes(mailbox.max_bytes + 1))


def test_who_waits_sleeps_longer_and_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mailbox = StepMailbox(tmp_path / "board", 0, 2, timeout_s=60.0)
    slept: list[float] = []
    monkeypatch.setattr("supervisor.storage.run.mailboxes.time.sleep", slept.append)

    assert mailbox.exchange(b"x", is_in_vain=lambda: True) is None

    assert len(slept) < 50
    assert slept == sorted(slept)
    assert 0.02 * 0.8 < sum(slept) < 0.02
    assert max(slept) == 1e-3


def test_a_rank_that_cannot_come_is_not_waited_for(tmp_path: Path) -> None:
    mailbox = StepMailbox(tmp_path / "board", 0, 2, timeout_s=60.0)
    asked: list[int] = []

    assert (
        mailbox.exchange(b"x", is_in_vain=lambda: bool(asked.append(0)) or len(asked) > 2) is None
    )
    assert len(asked) == 3


def test_who_waits_for_one_rank_goes_on_when_another_has_given_up(tmp_path: Path) -> None:
    first, second = (StepMailbox(tmp_path / "board", rank, 3, timeout_s=60.0) for rank in range(2))
    waiting = threading.Thread(target=second.exchange, args=(b"x",))
    waiting.start()

    assert first.exchange(b"x", timeout_s=0.3) is None

    waiting.join(timeout=20.0)
    assert not waiting.is_alive()


@pytest.mark.parametrize(
    ("done", "target", "expected"),
    [
        (0, 80, "fast-forwarding: 0 of 80 steps (0 %), for 10 s"),
        (20, 80, "fast-forwarding: 20 of 80 steps (25 %), for 10 s, at most 30 s left"),
        (90, 80, "fast-forwarding: 80 of 80 steps (100 %), for 10 s"),
        (0, 0, "fast-forwarding: 0 of 0 steps, for 10 s"),
    ],
)
def test_a_line_says_how_far_and_how_long(done: int, target: int, expected: str) -> None:
    assert describe_replay(done, target, 10.0) == expected
    if done == 20:
        assert describe_replay(done, target, 10.0, 0.1).endswith("for 10 s, about 6 s left")


def test_a_count_that_is_not_there_is_unknown(tmp_path: Path) -> None:
    path = tmp_path / "rank_0.collectives"
    assert read_count(path) is None
    path.write_bytes(b"torn")
    assert read_count(path) is None
    path.write_bytes((5).to_bytes(8, "little"))
    assert read_count(path) == 5


def test_the_counter_of_an_earlier_attempt_does_not_count(tmp_path: Path) -> None:
    path, now = tmp_path / "rank_0.replay", time.time()
    assert replayed_steps(path, now) is None
    path.write_bytes(struct.pack("<Q", 7))
    assert replayed_steps(path, now) == 7

    os.utime(path, (now - 100, now - 100))
    assert replayed_steps(path, now) is None


def test_the_newest_note_of_each_rank_is_read(tmp_path: Path) -> None:
    first, second = (RankStatus(tmp_path / "notes", rank, 2) for rank in range(2))
    assert first.read(1) is None

    second.write(b"a long one")
    second.write(b"short")

    assert first.read(1) == b"short"
    assert second.read(0) is None


def test_half_a_note_is_none(tmp_path: Path) -> None:
    notes = RankStatus(tmp_path / "notes", 0, 1)
    notes.write(b"whole")
    data = bytearray((tmp_path / "notes").read_bytes())
    data[data.index(b"whole")] ^= 1

    (tmp_path / "notes").write_bytes(data)

    assert RankStatus(tmp_path / "notes", 0, 1).read(0) is None


def test_a_note_without_room_leaves_none(tmp_path: Path) -> None:
    notes = RankStatus(tmp_path / "notes", 0, 1)
    notes.write(b"before")

    notes.write(bytes(NOTE_BYTES))

    assert notes.read(0) is None
