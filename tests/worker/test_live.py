"""A step's way through the live run: seen, judged before its update, counted."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from supervisor.storage.steps.flight_reader import read_steps
from supervisor.storage.steps.flight_recorder import UPDATE_SKIPPED
from supervisor.worker import live as live_driver
from tests.worker.conftest import Start


def test_each_update_leaves_one_row_with_what_was_seen(tmp_path: Path, start: Start) -> None:
    live = start(tmp_path / "run")

    live.steps(5)
    live.stop()

    rows = read_steps(tmp_path / "run")
    assert rows["step"].tolist() == [0, 1, 2, 3, 4]
    assert rows["batch_size"].tolist() == [8] * 5
    assert (rows["grad_norm"] > 0.0).all()
    assert rows["loss"][-1] < rows["loss"][0]


def test_an_update_with_a_nan_loss_never_reaches_the_weights(tmp_path: Path, start: Start) -> None:
    live = start(tmp_path / "run")
    live.steps(20)
    before = live.weights

    live.step(scale=math.nan)

    assert torch.equal(live.weights, before)
    live.steps(3)
    assert not torch.equal(live.weights, before)
    live.stop()
    flags = read_steps(tmp_path / "run")["flags"]
    assert [row for row in range(24) if flags[row] & UPDATE_SKIPPED] == [20]
    assert [event["step"] for event in live.events("update_skipped")] == [20]


def test_a_healthy_run_ends_with_the_weights_of_one_without_us(
    tmp_path: Path, start: Start
) -> None:
    live, plain = start(tmp_path / "run"), start(tmp_path / "plain")

    live.steps(40)
    plain.session.hooks.now = Untouched()  # type: ignore[assignment]
    plain.steps(40)

    assert torch.equal(live.weights, plain.weights)


def test_a_part_that_fails_leaves_the_training_and_the_other_parts_alone(
    tmp_path: Path, start: Start
) -> None:
    live = start(tmp_path / "run")
    live.fail(live.worker.api.step_judge, "judge")

    live.steps(40)
    live.stop()

    said = [event["message"] for event in live.events("warning")]
    assert "judging is switched off: judging failed 3 times" in said
    assert len(live.losses()) == 40
    assert live.checkpoints()


def test_what_was_computed_before_a_forward_is_looked_for_where_a_boundary_is_looked_at(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = start(tmp_path / "run", ["checkpoint.every_steps=1000", "parting.every_steps=20"])
    looks: list[int] = []
    monkeypatch.setattr(live_driver, "is_within_expression", lambda: looks.append(1) is not None)

    live.steps(60)
    live.stop()

    assert 0 < len(looks) < 30


class Untouched:
    """The hooks of a script that nobody watches."""

    def forward(self, model, args, kwargs, call):  # type: ignore[no-untyped-def]
        return call()

    def backward(self, roots, call):  # type: ignore[no-untyped-def]
        return call(roots)

    def before_update(self, optimizer, args, kwargs):  # type: ignore[no-untyped-def]
        return None

    def after_update(self, optimizer, result):  # type: ignore[no-untyped-def]
        return result


def test_behind_a_failure_of_what_a_replay_needs_no_resume_is_exact(
    tmp_path: Path, start: Start
) -> None:
    live = start(tmp_path / "run")
    live.steps(12)
    progress = live.worker.api.progress
    assert progress.can_replay

    live.session.hooks.now.forward(live.model, (Strange(),), {}, lambda: None)

    assert not progress.can_replay


class Strange(torch.Tensor):
    """An argument that raises when its shape is asked for."""

    @property
    def shape(self):  # type: ignore[no-untyped-def, override]
        raise RuntimeError("no shape")
