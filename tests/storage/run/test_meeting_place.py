"""Ranks of a replay wait for each other at their barriers, and never for one that is gone."""

from __future__ import annotations

import threading
from pathlib import Path

from supervisor.storage.run.mailboxes import NodeBarrier


def waiting(place: NodeBarrier) -> threading.Thread:
    thread = threading.Thread(target=place.wait)
    thread.start()
    return thread


def test_a_rank_waits_until_all_others_have_come_as_often(tmp_path: Path) -> None:
    first, second, third = (NodeBarrier(tmp_path / "meet", rank, 3) for rank in range(3))

    waits = waiting(first)
    also = waiting(second)
    assert waits.is_alive()
    third.wait()
    for thread in (waits, also):
        thread.join(10.0)

    assert not waits.is_alive()
    assert not also.is_alive()


def test_nobody_waits_for_a_rank_that_has_left(tmp_path: Path) -> None:
    first, second = (NodeBarrier(tmp_path / "meet", rank, 2) for rank in range(2))
    second.leave()

    for _ in range(3):
        first.wait()


def test_a_rank_that_does_not_come_is_waited_for_once(tmp_path: Path) -> None:
    first = NodeBarrier(tmp_path / "meet", 0, 2, timeout_s=0.05)

    first.wait()
    first._timeout_s = 1e9
    first.wait()
