"""From a checkpoint to the live run again."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from supervisor.records import WorkerOrder
from supervisor.worker.core.process_signs import ExitRequest
from tests.worker.conftest import Start


def test_an_attempt_goes_on_from_its_checkpoint_to_the_same_weights(
    tmp_path: Path, start: Start
) -> None:
    whole = start(tmp_path / "whole")
    whole.steps(30)
    killed = start(tmp_path / "run")
    killed.steps(25)
    killed.stop()
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
    killed.stop()

    saved = killed.checkpoints()[-1]
    resumed = start(tmp_path / "run", order=WorkerOrder(attempt=2, checkpoint_step=saved))
    resumed.optimizer.param_groups[0]["lr"] = 0.01
    resumed.steps(saved + 2)

    (event,) = resumed.events("resumed")
    assert event["exactness"] == "approximate"
    assert "learning rate" in event["reason"]


def test_a_script_that_ends_before_its_checkpoint_has_not_trained(
    tmp_path: Path, start: Start
) -> None:
    killed = start(tmp_path / "run")
    killed.steps(25)
    killed.stop()
    saved = killed.checkpoints()[-1]

    resumed = start(tmp_path / "run", order=WorkerOrder(attempt=2, checkpoint_step=saved))
    resumed.steps(7)

    assert f"after 7 fast-forwarded steps, before step {saved}" in resumed.session.shortfall


def test_a_state_that_does_not_fit_ends_the_process(tmp_path: Path, start: Start) -> None:
    killed = start(tmp_path / "run")
    killed.steps(25)
    killed.stop()
    saved = killed.checkpoints()[-1]
    resumed = start(tmp_path / "run", order=WorkerOrder(attempt=2, checkpoint_step=saved))
    resumed.steps(saved)
    resumed.model.weight.data = torch.zeros(3, 3)

    with pytest.raises(ExitRequest) as leaving:
        resumed.step()

    assert "could not be put back: CheckpointError" in leaving.value.reason
    assert "shape (1, 4) in the checkpoint, (3, 3) in the model" in leaving.value.reason
