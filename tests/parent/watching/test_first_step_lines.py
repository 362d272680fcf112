"""What is said while no step can be seen yet."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from supervisor.parent.watching import first_step_lines
from supervisor.parent.watching.first_step_lines import FirstStepLines
from supervisor.storage.run.rundir import RunDirectory


def lines_of(
    tmp_path: Path, *, target: int | None, behind: list[int], last_step: int | None = None
) -> tuple[FirstStepLines, list[str]]:
    feed: Any = SimpleNamespace(last_step=last_step, behind=lambda: behind)
    said: list[str] = []
    return FirstStepLines(RunDirectory(tmp_path), feed, 0, target, said.append), said


def test_the_ranks_that_others_wait_for_are_named_once_in_a_while(tmp_path: Path) -> None:
    lines, said = lines_of(tmp_path, target=None, behind=list(range(10)))
    began = time.monotonic()

    for passed_s in (0.0, 3.0, 4.0, 19.0):
        lines.look(began + passed_s)

    assert len(said) == 2
    assert said[0].startswith("waiting for ranks 0, 1, 2, 3, 4, 5, 6, 7 and 2 more")


def test_how_far_a_replay_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines, said = lines_of(tmp_path, target=100, behind=[])
    began, done = time.monotonic(), iter((20, 60))
    monkeypatch.setattr(first_step_lines, "replayed_steps", lambda *_: next(done))

    lines.look(began + 3.0)
    lines.look(began + 7.0)

    assert len(said) == 1
    assert "60" in said[0]
    assert "100" in said[0]


def test_nothing_once_there_is_a_step(tmp_path: Path) -> None:
    lines, said = lines_of(tmp_path, target=None, behind=[1], last_step=0)

    lines.look(time.monotonic() + 60.0)

    assert not said
