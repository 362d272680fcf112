"""The number of collectives that a rank has entered, kept where the parent can read it."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from supervisor.worker.process.collective_count import COUNT, CollectiveCount, entered_collectives


def test_the_number_is_kept_while_the_rank_waits(tmp_path: Path) -> None:
    path = tmp_path / "alive" / "rank_1.collectives"

    CollectiveCount(path, lambda: 38).start()

    deadline = time.monotonic() + 30.0
    while COUNT.unpack(path.read_bytes())[0] != 38 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert COUNT.unpack(path.read_bytes())[0] == 38


def test_without_a_group_nothing_is_known() -> None:
    assert entered_collectives() == 0


def test_others_are_told_as_often_whatever_fails_there(tmp_path: Path) -> None:
    told = threading.Event()

    def tell() -> None:
        told.set()
        raise RuntimeError("a group was destroyed meanwhile")

    CollectiveCount(tmp_path / "rank_0.collectives", lambda: 1, [tell]).start()

    assert told.wait(30.0)
