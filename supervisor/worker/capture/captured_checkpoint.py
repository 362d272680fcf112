"""All that one checkpoint will hold, copied at a boundary and not yet written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


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
