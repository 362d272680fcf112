"""The progress of a fast-forward."""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path

import pytest

from supervisor.storage.run.replay_progress import describe_replay, replayed_steps


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


def test_the_counter_of_an_earlier_attempt_does_not_count(tmp_path: Path) -> None:
    path, now = tmp_path / "rank_0.replay", time.time()
    assert replayed_steps(path, now) is None
    path.write_bytes(struct.pack("<Q", 7))
    assert replayed_steps(path, now) == 7

    os.utime(path, (now - 100, now - 100))
    assert replayed_steps(path, now) is None
