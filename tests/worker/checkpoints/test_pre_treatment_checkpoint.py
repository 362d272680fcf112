"""What is on disk before a treatment throws a state away."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from supervisor.actions.base import carry_out
from supervisor.actions.optimizer import ResetOptimizer
from supervisor.actions.requests import Restart
from supervisor.actions.rollback import Rollback
from supervisor.held_memory import HeldMemory
from supervisor.settings import CheckpointSettings, SnapshotSettings
from supervisor.storage.checkpoints.checkpoints import CheckpointRing
from supervisor.storage.journal.journal import Journal
from supervisor.training_state.state import TrainingState, digest, read_state
from supervisor.worker.checkpoints.checkpoint_writer import CapturedCheckpoint, SingleWriter
from supervisor.worker.checkpoints.checkpointer import Checkpointer
from supervisor.worker.checkpoints.pre_treatment_checkpoint import PreTreatmentCheckpoint
from supervisor.worker.core.progress import Progress
from supervisor.worker.core.step_probe import StepProbe
from tests.actions.small_context import Scene, build_scene
from tests.journals import read_raw
from tests.storage.failing_file_system import FastDisk, SmallDisk

SETTINGS = CheckpointSettings(every_steps=10, background=False, min_free_gib=0.0)
STEPS = 25


def ground_of(warnings: list[str]) -> Any:
    return SimpleNamespace(
        progress=Progress(StepProbe(), steps_done=STEPS),
        rundir=SimpleNamespace(root=Path("/the run")),
        warn=warnings.append,
    )


class Ward:
    """A small training with a snapshot of step 0 and one of step 20, whose states are kept."""

    def __init__(self, folder: Path, *, room: int = 10**9) -> None:
        scene = build_scene()
        scene.snapshot()
        scene.train(20)
        scene.snapshot()
        scene.optimizer.param_groups[0]["lr"] = 0.5  # as a schedule does
        scene.train(STEPS - 20)
        self.scene: Scene = scene
        self.journal = folder / "events.jsonl"
        self.ring = CheckpointRing(
            folder / "ring", SETTINGS, file_system=SmallDisk(folder / "ring", room)
        )
        journal = Journal(self.journal, attempt=1, rank=0)
        self.checkpointer = Checkpointer(
            SingleWriter(self.ring, lambda: None),
            SETTINGS,
            journal,
            memory=HeldMemory(SnapshotSettings()),
        )
        self.warnings: list[str] = []
        self.pre_treatment = PreTreatmentCheckpoint(
            ground_of(self.warnings),
            lambda: (scene.context.state.capture(), {}),
            self.checkpointer,
        )
        scene.context = dataclasses.replace(scene.context, keep_state=self.pre_treatment.keep)

    def kept(self) -> dict[str, Any]:
        (checkpoint,) = self.ring.abandoned()
        assert (checkpoint.step, checkpoint.stable) == (STEPS, False)
        state: dict[str, Any] = read_state(checkpoint.path)
        return state

    def events(self, kind: str) -> list[Mapping[str, Any]]:
        return [event for event in read_raw(self.journal) if event["kind"] == kind]


@pytest.fixture
def ward(tmp_path: Path) -> Ward:
    return Ward(tmp_path)


def test_the_state_that_a_rollback_throws_away_is_on_disk_to_the_bit(ward: Ward) -> None:
    before = digest(ward.scene.context.state.capture())

    result = carry_out(Rollback(), ward.scene.context)

    assert (result.to_step, result.fields["kept_step"]) == (0, STEPS)
    assert digest(ward.kept()) == before
    assert digest(ward.scene.context.state.capture()) != before
    (saved,) = ward.events("checkpoint_saved")
    assert saved["abandoned"]
    assert saved["command"] == "supervisor resume '/the run' --from 25"


def test_where_it_is_not_finite_a_whole_state_with_the_weights_of_the_snapshot_is(
    ward: Ward,
) -> None:
    first = ward.scene.context.snapshots.oldest()
    assert first is not None
    with torch.no_grad():
        ward.scene.model[0].weight.fill_(torch.nan)

    result = carry_out(Restart(), ward.scene.context)

    assert result.fields["kept_step"] == STEPS
    kept = ward.kept()
    other = build_scene()
    other.train()
    TrainingState(other.context.registry).restore(kept)  # a whole state: nothing is missing
    assert digest(other.context.state.capture()["models"]) == digest(first.state["models"])
    assert other.optimizer.param_groups[0]["lr"] == 0.5
    (saved,) = ward.events("checkpoint_saved")
    assert "with the weights of step 0" in saved["reason"]


def test_one_boundary_keeps_one_state_that_of_before_its_first_treatment(ward: Ward) -> None:
    before = digest(ward.scene.context.state.capture())

    carry_out(ResetOptimizer(), ward.scene.context)
    result = carry_out(Rollback(), ward.scene.context)

    assert result.fields["kept_step"] == STEPS
    assert digest(ward.kept()) == before


def test_a_full_disk_costs_a_warning_and_no_treatment(tmp_path: Path) -> None:
    ward = Ward(tmp_path, room=100)

    result = carry_out(Rollback(), ward.scene.context)

    assert result.applied
    assert ward.ring.abandoned() == []
    (warning,) = ward.events("warning")
    assert "before rollback: not kept" in warning["message"]
    assert "make room" in warning["message"]


def test_a_state_that_cannot_be_captured_costs_a_warning_and_no_treatment(ward: Ward) -> None:
    def broken() -> Any:
        raise RuntimeError("no capture")

    pre_treatment = PreTreatmentCheckpoint(ground_of(ward.warnings), broken, ward.checkpointer)
    context = dataclasses.replace(ward.scene.context, keep_state=pre_treatment.keep)

    result = carry_out(Rollback(), context)

    assert result.applied
    assert "kept_step" not in result.fields
    assert ward.warnings == ["the state before rollback is not kept: RuntimeError: no capture"]


def test_a_refused_treatment_keeps_nothing(ward: Ward) -> None:
    ward.scene.context.snapshots.clear()

    result = carry_out(Rollback(), ward.scene.context)

    assert not result.applied
    assert ward.ring.abandoned() == []


def test_the_save_that_falls_on_a_kept_step_comes_one_step_later(tmp_path: Path) -> None:
    ring = CheckpointRing(tmp_path / "ring", SETTINGS, file_system=FastDisk())
    journal = Journal(tmp_path / "events.jsonl", attempt=1, rank=0)
    checkpointer = Checkpointer(
        SingleWriter(ring, lambda: None), SETTINGS, journal, memory=HeldMemory(SnapshotSettings())
    )
    checkpointer.keep_abandoned(
        CapturedCheckpoint(step=30, state={}, meta={}, reason="before rollback", abandoned=True)
    )

    due = [step for step in range(28, 34) if checkpointer.is_due(step)]
    asked = checkpointer.next_look(31)[0]
    checkpointer.save(CapturedCheckpoint(step=31, state={}, meta={}, reason="interval"), wait=False)

    assert due == [31, 32, 33]  # until it is made
    assert asked == 0.0
    assert not checkpointer.is_free(30)
    assert [step for step in range(32, 41) if checkpointer.is_due(step)] == [40]
    assert ([c.step for c in ring.checkpoints()], [c.step for c in ring.abandoned()]) == (
        [31],
        [30],
    )
