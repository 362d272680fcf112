"""The session: signals, and the way out."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.worker.core.process_signs import ExitRequest
from tests.worker.conftest import Start


@pytest.fixture(autouse=True)
def own_handlers() -> Iterator[None]:
    earlier = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, earlier)


def test_sigterm_saves_at_the_next_boundary_and_leaves(tmp_path: Path, start: Start) -> None:
    live = start(tmp_path / "run")
    live.session.start()
    live.steps(13)

    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(ExitRequest) as leaving:
        live.step()

    assert (leaving.value.note, leaving.value.reason) == ("interrupted", "SIGTERM")
    assert 13 in live.checkpoints()


def test_a_second_sigterm_leaves_at_once(tmp_path: Path, start: Start) -> None:
    live = start(tmp_path / "run")
    live.session.start()
    live.steps(3)
    os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(ExitRequest):
        os.kill(os.getpid(), signal.SIGTERM)


def test_the_first_sigterm_of_a_rank_saves_where_another_rank_was_asked_before(
    tmp_path: Path, start: Start
) -> None:
    live = start(tmp_path / "run")
    live.session.start()
    live.steps(13)
    live.session._schedule.ask_to_leave("interrupted", "SIGTERM")  # all ranks have agreed

    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(ExitRequest):
        live.step()

    assert 13 in live.checkpoints()


def test_a_checkpoint_that_cannot_be_saved_does_not_keep_the_process(
    tmp_path: Path, start: Start
) -> None:
    live = start(tmp_path / "run", ["checkpoint.every_steps=1000"])
    live.session.start()
    live.steps(13)
    live.fail(live.worker.files.record, "begin_interval")

    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(ExitRequest):
        live.step()

    assert live.checkpoints() == []
    assert any("checkpoints failed" in event["message"] for event in live.events("warning"))
