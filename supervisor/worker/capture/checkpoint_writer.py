"""How a captured state becomes a checkpoint on disk: the strategy of saving."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from supervisor.storage.checkpoints.checkpoints import Checkpoint


class CheckpointWriter(Protocol):
    """Writes checkpoints and says which can be trusted; when to save is the `Checkpointer`'s part.

    `tests/worker/capture/test_checkpoint_writers.py` holds every implementation to what is promised
    here: a checkpoint is complete or absent, whenever the process is killed. Where several ranks
    save together, `write` and `mark_stable` are called on each rank, in the same order. All but
    `spoil` may wait for the disk, so they are called in the thread that writes, or before the
    process ends.
    """

    def write(self, captured: CapturedCheckpoint) -> Checkpoint:
        """Returns the checkpoint once it is on disk.

        The tape is made durable before, the manifest is written last. Its meta has the `digest` of
        the state. A checkpoint of this step that verifies is kept as it is, unless it was
        abandoned.

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
