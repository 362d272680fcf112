"""What the replay log holds of the random generators."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import supervisor.worker.random_state.random_states as random_states
from supervisor.storage.steps.replay_log import EntryKind, ReplayLogWriter
from supervisor.storage.steps.replay_log_reader import ReplayLogReader
from supervisor.worker.random_state.random_states import RandomReplay, RngRecorder


@pytest.fixture
def replay_log(tmp_path: Path) -> Iterator[ReplayLogWriter]:
    writer = ReplayLogWriter(tmp_path / "tape")
    yield writer
    writer.close()


def _region(trail: RngRecorder, draw: Callable[[], object]) -> None:
    earlier = trail.before()
    draw()
    trail.after(earlier)


def _written(replay_log: ReplayLogWriter, path: Path) -> ReplayLogReader:
    return ReplayLogReader(path, end=replay_log.write_out())


@pytest.mark.parametrize("from_memory", [True, False])
def test_a_state_is_written_only_where_the_script_draws_behind_a_region(
    replay_log: ReplayLogWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, from_memory: bool
) -> None:
    if not from_memory:  # as where torch keeps its state in another way
        monkeypatch.setattr(random_states, "generator_window", lambda: None)
    trail = RngRecorder(replay_log)
    states = {}
    for index in range(40):
        _region(trail, lambda: torch.randn(3))  # odd: leaves half of a normal pair behind
        states[index] = torch.get_rng_state()
        replay_log.append(EntryKind.INT, index.to_bytes(8, "little"))
        if index % 10 == 9:
            torch.rand(2)
    _region(trail, lambda: None)

    reader = _written(replay_log, tmp_path / "tape")

    found, replay = [], RandomReplay(reader)
    for index in range(40):
        torch.manual_seed(0)
        is_noted = reader.peek() == EntryKind.RANDOM_STATE
        replay.passed()
        if is_noted:
            found.append(index)
            assert torch.equal(torch.get_rng_state(), states[index])
        assert reader.take(EntryKind.INT) == index.to_bytes(8, "little")
    assert found == [9, 19, 29, 39]


def test_the_generators_of_python_and_numpy_are_kept_as_well(
    replay_log: ReplayLogWriter, tmp_path: Path
) -> None:
    trail = RngRecorder(replay_log)
    _region(trail, lambda: (random.random(), np.random.rand()))
    expected = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
    random.random()
    np.random.rand()
    _region(trail, lambda: None)

    random.seed(0)
    np.random.seed(0)
    RandomReplay(_written(replay_log, tmp_path / "tape")).passed()

    assert (random.getstate(), np.random.get_state()[1].tolist()) == expected  # type: ignore[index]


def test_a_state_that_the_script_looks_at_is_written(
    replay_log: ReplayLogWriter, tmp_path: Path
) -> None:
    trail = RngRecorder(replay_log)
    _region(trail, lambda: torch.rand(1))
    trail.was_read()
    _region(trail, lambda: torch.rand(1))

    assert replay_log.offset > 2000
    assert _written(replay_log, tmp_path / "tape").peek() == EntryKind.RANDOM_STATE


def test_what_lies_behind_a_full_buffer_is_still_replayed(
    replay_log: ReplayLogWriter, tmp_path: Path
) -> None:
    trail = RngRecorder(replay_log)
    states = []
    for _ in range(20):
        _region(trail, lambda: torch.rand(3))
        states.append(torch.get_rng_state())
        replay_log.append(EntryKind.ARRAY, bytes(40_000))  # written out before the script draws
        torch.rand(1)

    reader = _written(replay_log, tmp_path / "tape")
    replay = RandomReplay(reader)

    for state in states:
        replay.passed()
        assert torch.equal(torch.get_rng_state(), state)
        reader.take(EntryKind.ARRAY)


def test_regions_that_draw_cost_nothing_while_the_script_does_not(
    replay_log: ReplayLogWriter,
) -> None:
    trail = RngRecorder(replay_log)

    for _ in range(1000):
        _region(trail, lambda: torch.rand(1))

    assert replay_log.offset == 0


def test_a_quiet_region_leaves_nothing_where_the_script_draws(replay_log: ReplayLogWriter) -> None:
    trail = RngRecorder(replay_log)

    for _ in range(40):
        _region(trail, lambda: None)
        torch.rand(1)

    assert replay_log.offset == 0


def test_a_region_leaves_the_state_of_the_next_on_the_tape(
    replay_log: ReplayLogWriter, tmp_path: Path
) -> None:
    trail = RngRecorder(replay_log)
    between = []
    for index in range(300):
        _region(trail, random.random if index % 2 == 0 else lambda: None)
        if index in (3, 290):
            between.append((index, random.random()))
    _region(trail, lambda: None)

    replay, again = RandomReplay(_written(replay_log, tmp_path / "tape")), []
    for index in range(300):
        replay.passed()
        if index in (3, 290):
            again.append((index, random.random()))

    assert again == between


def test_a_script_that_draws_between_all_regions_draws_the_same(
    replay_log: ReplayLogWriter, tmp_path: Path
) -> None:
    trail = RngRecorder(replay_log)
    between = []
    for draws in (True, False, True, False, True):
        _region(trail, random.random if draws else lambda: None)
        between.append(random.random())
    _region(trail, lambda: None)

    replay, again = RandomReplay(_written(replay_log, tmp_path / "tape")), []
    for _ in between:
        replay.passed()
        again.append(random.random())

    assert again == between
