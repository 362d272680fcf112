"""How a captured state becomes a checkpoint on disk: the strategy of saving.

Saving by one process alone.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from supervisor.errors import CheckpointError, StateNotFinite
from supervisor.storage.checkpoints.checkpoint_files import write_section
from supervisor.storage.checkpoints.checkpoints import Checkpoint, CheckpointRing
from supervisor.training_state.snapshot import state_bytes
from supervisor.training_state.state import digest, is_finite, read_state, write_state


class CheckpointWriter(Protocol):
    """Writes checkpoints and says which can be trusted; when to save is the `Checkpointer`'s part.

    `tests/worker/checkpoints/test_checkpoint_writers.py` holds every implementation to what is
    promised here: a checkpoint is complete or absent, whenever the process is killed. Where several
    ranks save together, `write` and `mark_stable` are called on each rank, in the same order. All
    but `spoil` may wait for the disk, so they are called in the thread that writes, or before the
    process ends.
    """

    def write(self, captured: CapturedCheckpoint) -> Checkpoint:
        """Returns the checkpoint once it is on disk.

        The replay log is made durable before, the manifest is written last. Its meta has the
        `digest` of the state. A checkpoint of this step that verifies is kept as it is, unless it
        was abandoned.

        Raises:
            StateNotFinite: nothing is written, except an abandoned state, which may be sick.
            CheckpointError: the disk refuses; earlier checkpoints are as they were.
        """

    def stream(self, captured: CapturedCheckpoint) -> CapturedCheckpoint:
        """Writes a live state aside, for which there is no room in memory; the training waits.

        Returns:
            The same with the state in a `file`; `write` makes a checkpoint of it, and whoever asked
            removes the file's folder.

        Raises:
            CheckpointError: the disk refuses.
        """

    def saves_no_more(self) -> None:
        """This rank's saving is switched off: the others need not wait for it. Never raises."""

    def steps(self) -> list[int]:
        """Returns the steps of the checkpoints, newest last, abandoned ones left out."""

    def read(self, step: int) -> dict[str, Any]:
        """Returns the state saved at `step`, verified.

        Raises:
            CheckpointError: it is not there, or damaged.
        """

    def mark_stable(self, step: int) -> None:
        """Marks a checkpoint that healthy steps followed, after reading it back from the disk.

        Raises:
            CheckpointDamaged: it is not what was written.
            CheckpointError: it is gone, or was abandoned.
        """

    def spoil(self, step: int) -> None:
        """Trouble followed this checkpoint: it will never be stable."""

    def abandoned_steps(self) -> Set[int]:
        """Returns the steps of abandoned states, whose place no other save takes."""

    def room_warning(self) -> str | None:
        """Returns a sentence if the disk will soon be full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedCheckpoint:
    """What goes from the boundary to a `CheckpointWriter`.

    Whatever else is to be saved with the training becomes another entry of `sections`.

    Attributes:
        step: steps done at the boundary.
        state: of `TrainingState.capture`; live, until the checkpointer has copied it.
        meta: goes into the manifest.
        reason: why it is saved, in a word or two.
        sections: name → content that JSON can hold; each becomes a file of the checkpoint.
        abandoned: a treatment is about to throw this state away: it is kept for a person alone.
        command: by which a person goes back to an abandoned one.
        file: where `state` is already, as `write_state` writes it; None if it is in memory alone.
    """

    step: int
    state: Mapping[str, Any]
    meta: Mapping[str, Any]
    reason: str
    sections: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    abandoned: bool = False
    command: str | None = None
    file: Path | None = None


class SingleWriter(CheckpointWriter):
    """Writes all files itself and publishes them by one rename.

    Args:
        ring: the checkpoints of the run.
        before_publishing: makes durable what a checkpoint refers to: the replay log.
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
