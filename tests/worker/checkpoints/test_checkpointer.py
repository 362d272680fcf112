"""The checkpointer asks for its boundaries by what its saves have cost."""

from __future__ import annotations

import math
import threading
import time
from pathlib import Path

import pytest
import torch

from supervisor.held_memory import HeldMemory
from supervisor.settings import CheckpointSettings, SnapshotSettings
from supervisor.storage.checkpoints.checkpoints import Checkpoint, CheckpointRing
from supervisor.storage.journal.journal import Journal
from supervisor.worker.checkpoints import checkpointer as saving
from supervisor.worker.checkpoints.checkpoint_writer import CapturedCheckpoint, SingleWriter
from supervisor.worker.checkpoints.checkpointer import Checkpointer

BEFORE_COSTS_ARE_KNOWN_S = 5.4
SHORTEST_STEP_S = 1e-6


def test_what_the_writing_cost_the_steps_puts_the_next_save_off(tmp_path: Path) -> None:
    settings = CheckpointSettings(min_free_gib=0.0)
    ring = CheckpointRing(tmp_path / "checkpoints", settings)
    journal = Journal(tmp_path / "journal.jsonl", attempt=1, rank=0)
    checkpointer = Checkpointer(
        SingleWriter(ring, lambda: None), settings, journal, memory=HeldMemory(SnapshotSettings())
    )

    captured = CapturedCheckpoint(
        step=1,
        state={"models": {"model_0": {"weight": torch.zeros(300, 300)}}},
        meta={},
        reason="interval",
    )
    checkpointer.save(captured, wait=False, usual_step_s=SHORTEST_STEP_S)
    soon = time.monotonic() + 1.1 * BEFORE_COSTS_ARE_KNOWN_S
    while_it_was_written = checkpointer.next_look(1)
    while checkpointer.is_busy:
        time.sleep(0.001)
    checkpointer.measure(3, soon)
    step, at = checkpointer.next_look(3)
    checkpointer.close()

    assert while_it_was_written[0] == 0.0
    assert step == 1.0 + settings.stable_after_steps
    assert at > soon
    assert [checkpoint.step for checkpoint in ring.checkpoints()] == [1]


def test_what_it_takes_to_gather_a_checkpoint_is_a_part_of_its_cost(tmp_path: Path) -> None:
    settings = CheckpointSettings(min_free_gib=0.0)
    ring = CheckpointRing(tmp_path / "checkpoints", settings)
    journal = Journal(tmp_path / "journal.jsonl", attempt=1, rank=0)
    checkpointer = Checkpointer(
        SingleWriter(ring, lambda: None), settings, journal, memory=HeldMemory(SnapshotSettings())
    )

    captured = CapturedCheckpoint(step=1, state={}, meta={}, reason="interval")
    waited_s = checkpointer.save(captured, wait=True, gathered_in_s=1.0)
    checkpointer.measure(2, time.monotonic())
    _, at = checkpointer.next_look(2)
    checkpointer.close()

    assert waited_s > 1.0
    assert at > time.monotonic() + 0.9 * math.sqrt(2.0 * settings.mtbf_s)


def test_a_save_that_is_due_between_two_boundaries_is_made_at_the_next_one(tmp_path: Path) -> None:
    settings = CheckpointSettings(every_steps=5, min_free_gib=0.0)
    ring = CheckpointRing(tmp_path / "checkpoints", settings)
    journal = Journal(tmp_path / "journal.jsonl", attempt=1, rank=0)
    checkpointer = Checkpointer(
        SingleWriter(ring, lambda: None), settings, journal, memory=HeldMemory(SnapshotSettings())
    )

    due = []
    for step in range(1, 25, 3):  # 1, 4, 7, 10, 13, ...
        if checkpointer.is_due(step):
            due.append(step)
            captured = CapturedCheckpoint(step=step, state={}, meta={}, reason="interval")
            checkpointer.save(captured, wait=True)
        checkpointer.next_look(step)
    checkpointer.close()

    assert due == [7, 10, 16, 22]


class NeedsTheOther(SingleWriter):
    """As a rank's: the other one stands in a collective until this one's training goes on."""

    other = threading.Event()

    def write(self, captured: CapturedCheckpoint) -> Checkpoint:
        self.other.wait()
        return super().write(captured)


def test_a_rank_does_not_wait_for_one_that_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "PATIENCE_S", 0.1)
    settings = CheckpointSettings(min_free_gib=0.0, background=False)
    ring = CheckpointRing(tmp_path / "checkpoints", settings)
    journal = Journal(tmp_path / "journal.jsonl", attempt=1, rank=0)
    writer = NeedsTheOther(ring, lambda: None)
    checkpointer = Checkpointer(
        writer, settings, journal, memory=HeldMemory(SnapshotSettings()), puts_off=False
    )

    checkpointer.save(CapturedCheckpoint(step=1, state={}, meta={}, reason="interval"), wait=False)
    saved_meanwhile = ring.checkpoints()
    writer.other.set()
    checkpointer.close()

    assert saved_meanwhile == []
    assert [checkpoint.step for checkpoint in ring.checkpoints()] == [1]
    assert "s to save step 1:" in (tmp_path / "journal.jsonl").read_text()


def test_a_long_wait_at_the_end_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = CheckpointSettings(min_free_gib=0.0)
    ring = CheckpointRing(tmp_path / "checkpoints", settings)
    journal = Journal(tmp_path / "journal.jsonl", attempt=1, rank=0)
    checkpointer = Checkpointer(
        SingleWriter(ring, lambda: None), settings, journal, memory=HeldMemory(SnapshotSettings())
    )
    monkeypatch.setattr(saving, "_UNTOLD_S", 0.0)
    told = threading.Event()
    monkeypatch.setattr(checkpointer._writer, "write", lambda _: told.wait(60.0))
    write = journal.write
    monkeypatch.setattr(journal, "write", lambda event: (write(event), told.set()))

    captured = CapturedCheckpoint(step=1, state={}, meta={}, reason="interval")
    checkpointer.save(captured, wait=False)
    checkpointer.close()

    assert "are still being written" in (tmp_path / "journal.jsonl").read_text()
