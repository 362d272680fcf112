"""Saving by one process alone."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from supervisor.errors import CheckpointError, StateNotFinite
from supervisor.storage.checkpoints.checkpoints import Checkpoint, CheckpointRing
from supervisor.storage.checkpoints.section_files import write_section
from supervisor.training_state.codec import read_state, write_state
from supervisor.training_state.snapshot import state_bytes
from supervisor.training_state.state import digest, is_finite
from supervisor.worker.capture.checkpoint_writer import CapturedCheckpoint, CheckpointWriter


class SingleWriter(CheckpointWriter):
    """Writes all files itself and publishes them by one rename.

    Args:
        ring: the checkpoints of the run.
        before_publishing: makes durable what a checkpoint refers to: the tape.
    """

    def __init__(self, ring: CheckpointRing, before_publishing: Callable[[], None]) -> None:
        self._ring = ring
        self._before_publishing = before_publishing

    def write(self, captured: CapturedCheckpoint) -> Checkpoint:
        meta = with_digest(captured)
        make_durable(self._before_publishing)
        return self._ring.save(
            captured.step,
            lambda folder: fill(folder, captured),
            reason=captured.reason,
            meta=meta,
            estimated_bytes=0 if captured.file else state_bytes(captured.state),
            abandoned=captured.abandoned,
        )

    def stream(self, captured: CapturedCheckpoint) -> CapturedCheckpoint:
        needed = state_bytes(captured.state)
        folder = self._ring.aside(captured.step, needed, for_abandoned=captured.abandoned)
        return streamed(captured, folder)

    def saves_no_more(self) -> None:
        """Nobody waits for it."""

    def steps(self) -> list[int]:
        return [checkpoint.step for checkpoint in self._ring.checkpoints()]

    def read(self, step: int) -> dict[str, Any]:
        return read_state(self._ring.get(step).path)

    def mark_stable(self, step: int) -> None:
        self._ring.mark_stable(step)

    def spoil(self, step: int) -> None:
        self._ring.spoil(step)

    def abandoned_steps(self) -> set[int]:
        return {checkpoint.step for checkpoint in self._ring.abandoned()}

    def room_warning(self) -> str | None:
        return self._ring.room_warning()


def with_digest(captured: CapturedCheckpoint) -> dict[str, Any]:
    """Returns what the manifest says of a state, with its digest.

    Raises:
        StateNotFinite: it holds NaN or infinities, and was not abandoned.
    """
    finite, bad = is_finite(captured.state)
    if not (finite or captured.abandoned):
        raise StateNotFinite(f"checkpoint of step {captured.step} left out: {bad} is not finite")
    return {"digest": digest(captured.state), **captured.meta}


def streamed(captured: CapturedCheckpoint, folder: Path) -> CapturedCheckpoint:
    """Returns a live state with its tensors in a file of `folder`, and the digest of what was live.

    Raises:
        CheckpointError: the disk refuses; the folder is gone then.
    """
    try:
        meta = {**captured.meta, "digest": digest(captured.state)}
        file = write_state(folder, captured.state)
        return replace(captured, state=read_state(folder), file=file, meta=meta)
    except Exception as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, (OSError, RuntimeError)):  # torch's, of its file writer
            raise CheckpointError(f"{folder.parent}: {error}") from error
        raise


def make_durable(before_publishing: Callable[[], None]) -> None:
    """Has what a checkpoint refers to put on disk.

    Raises:
        CheckpointError: the disk refuses.
    """
    try:
        before_publishing()
    except OSError as error:
        raise CheckpointError(str(error)) from error


def fill(folder: Path, captured: CapturedCheckpoint) -> None:
    """Writes all files of one process's state, or moves there what is written already.

    Raises:
        OSError: the disk refuses.
    """
    if captured.file is None:
        write_state(folder, captured.state)
    else:
        captured.file.replace(folder / captured.file.name)
    for name, content in captured.sections.items():
        write_section(folder, name, content)
