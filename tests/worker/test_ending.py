"""What is done at the end of the process, whatever of it fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from supervisor.worker.core.process_signs import ExitRequest
from tests.worker.conftest import Start

ENDS = ["step_judge", "samples", "probes", "model_scene"]


@pytest.mark.parametrize("error", [RuntimeError, SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("part", ENDS)
def test_a_part_that_fails_keeps_nothing_else_from_being_done(
    part: str, error: type[BaseException], tmp_path: Path, start: Start
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise error("of ours")

    live = start(tmp_path / "run", ["checkpoint.every_steps=1000", "parting.every_steps=2"])
    live.steps(7)
    getattr(live.worker, part).ends = fails

    live.session.stop(completed=False, parts=True)

    assert live.checkpoints() == [6]
    said = [event["message"] for event in live.events("warning")]
    assert said == [f"at the end: {error.__name__}: of ours"]


@pytest.mark.parametrize("piece", ["checkpointer", "replay_log"])
def test_what_cannot_be_closed_is_told_and_the_rest_is_closed(
    piece: str, tmp_path: Path, start: Start
) -> None:
    live = start(tmp_path / "run")
    live.steps(7)
    part = getattr(live.worker, piece)
    close = part.close
    live.fail(part, "close")

    live.stop()

    close()  # an open file would trouble whatever test runs when it is collected
    assert "at the end: RuntimeError: close is broken" in [
        event["message"] for event in live.events("warning")
    ]


def test_a_wish_to_leave_is_not_kept(tmp_path: Path, start: Start) -> None:
    def leaves(*_: Any) -> None:
        raise ExitRequest("interrupted", "SIGTERM")

    live = start(tmp_path / "run")
    live.steps(3)
    step_judge = live.worker.step_judge
    step_judge.ends = leaves  # type: ignore[method-assign]

    with pytest.raises(ExitRequest):
        live.stop()

    del step_judge.ends
    live.session.stop(completed=True)
