"""The session: signals, the way out, and a resume in the same words as the live run."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from supervisor.records import WorkerOrder
from supervisor.worker.process.exit_request import ExitRequest
from tests.worker.conftest import Start


@pytest.fixture(autouse=True)
def own_handlers() -> Iterator[None]:
    earlier = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, earlier)


def test_sigterm_saves_at_the_next_boundary_and_leaves(tmp_path: Path, start: Start) -> None:
    live = start(tmp_path / "run")
    live.session.begin()
    live.steps(13)

    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(ExitRequest) as leaving:
        live.step()

    assert (leaving.value.note, leaving.value.reason) == ("interrupted", "SIGTERM")
    assert 13 in live.checkpoints()


def test_a_second_sigterm_leaves_at_once(tmp_path: Path, start: Start) -> None:
    live = start(tmp_path / "run")
    live.session.begin()
    live.steps(3)
    os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(ExitRequest):
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_checkpoint_that_cannot_be_saved_does_not_keep_the_process(
    tmp_path: Path, start: Start
) -> None:
    live = start(tmp_path / "run", ["checkpoint.every_steps=1000"])
    live.session.begin()
    live.steps(13)
    live.fail(live.worker.files.record, "begin_interval")

    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(ExitRequest):
        live.step()

    assert live.checkpoints() == []
    assert any("checkpoints failed" in event["message"] for event in live.events("warning"))


def test_an_attempt_goes_on_from_its_checkpoint_to_the_same_weights(
    tmp_path: Path, start: Start
) -> None:
    whole = start(tmp_path / "whole")
    whole.steps(30)
    killed = start(tmp_path / "run")
    killed.steps(25)
    killed.end()
    saved = killed.checkpoints()[-1]

    resumed = start(tmp_path / "run", order=WorkerOrder(attempt=2, checkpoint_step=saved))
    resumed.steps(saved)
    assert not resumed.session.has_arrived
    resumed.steps(30 - saved)

    assert resumed.session.has_arrived
    assert torch.equal(resumed.weights, whole.weights)
    (event,) = resumed.events("resumed")
    assert (event["exactness"], event["from_step"]) == ("exact", saved)


def test_a_script_that_goes_another_way_is_not_resumed_exactly(
    tmp_path: Path, start: Start
) -> None:
    killed = start(tmp_path / "run")
    killed.steps(25)
    killed.end()

    resumed = start(tmp_path / "run", order=WorkerOrder(attempt=2, checkpoint_step=20))
    resumed.optimizer.param_groups[0]["lr"] = 0.01
    resumed.steps(22)

    (event,) = resumed.events("resumed")
    assert event["exactness"] == "approximate"
    assert "learning rate" in event["reason"]
