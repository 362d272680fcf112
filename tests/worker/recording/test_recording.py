"""What the tape holds of the random generators."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

import supervisor.worker.recording.recording as recording
from supervisor.storage.steps.tape import TapeReader, TapeWriter
from supervisor.worker.recording.recording import RandomReplay, RngRecorder


@pytest.mark.parametrize("from_memory", [True, False])
def test_the_state_behind_each_drawing_region_comes_back_to_the_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, from_memory: bool
) -> None:
    if not from_memory:  # as where torch keeps its state in another way
        monkeypatch.setattr(recording, "generator_window", lambda: None)
    tape = TapeWriter(tmp_path / "tape")
    trail = RngRecorder(tape)
    states = []
    for index in range(2 * trail.PROBATION):
        if trail.forwards_draw:
            torch.randn(3)  # an odd count leaves half of a normal pair behind
            trail.note()
        else:
            earlier = trail.before()
            torch.randn(3)
            trail.after(earlier)
        states.append(torch.get_rng_state())
        torch.rand(index)
    assert trail.forwards_draw

    end = tape.write_out()
    tape.close()
    reader = TapeReader(tmp_path / "tape", end=end)

    replay = RandomReplay(reader)
    for expected in states:
        torch.manual_seed(0)
        replay.passed()
        assert torch.equal(torch.get_rng_state(), expected)


def test_a_region_leaves_the_state_of_the_next_on_the_tape(tmp_path: Path) -> None:
    tape = TapeWriter(tmp_path / "tape")
    trail = RngRecorder(tape)
    between = []
    for draws in (True, False, True, False, True):
        earlier = trail.before()
        if draws:
            random.random()
        trail.after(earlier)
        between.append(random.random())
    reader = TapeReader(tmp_path / "tape", end=tape.write_out())
    tape.close()

    replay, again = RandomReplay(reader), []
    for _ in between:
        replay.passed()
        again.append(random.random())

    assert again == between


def test_a_forward_that_does_not_draw_leaves_nothing(tmp_path: Path) -> None:
    tape = TapeWriter(tmp_path / "tape")
    trail = RngRecorder(tape)

    for _ in range(2 * trail.PROBATION):
        trail.after(trail.before())
        torch.rand(1)

    assert tape.offset == 0
    assert not trail.forwards_draw
    tape.close()
