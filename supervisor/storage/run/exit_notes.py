"""The note that a worker leaves when it ends, in ``exits/attempt_<n>/rank_<r>.json``.

No note means that the process was killed, or ended by the interpreter itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from supervisor.codes import OutsideCause
from supervisor.errors import RunDirectoryError
from supervisor.masking import mask_all
from supervisor.records import plain
from supervisor.storage.files.checked_record import build_record
from supervisor.storage.files.kept_writes import KEPT
from supervisor.storage.files.record_file import load_record
from supervisor.storage.run import handover
from supervisor.storage.run.rundir import RunDirectory

EXIT_KINDS = (
    "completed",
    "exception",
    "system_exit",
    "interrupted",
    "restart",
    "retry",
    "stop",
    "user_error",
    "short",
    "loading",
    "own_signal",
    "executed",
)
FAILED = frozenset(EXIT_KINDS) - {"completed", "own_signal", "executed"}
"""After these the process is only on its way out."""
EXIT_PHASES = ("import", "before_first_step", "training")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitNote:
    """How a worker ended, in its own words.

    Attributes:
        kind: one of `EXIT_KINDS`. Without ``completed``, a return code of 0 is no success;
            ``short``: the script ended, or our own work failed, before the checkpoint's state was
            restored; ``loading``: a replay needs batches whose loading it had left out;
            ``own_signal``: written before the process sent itself a signal that ends it;
            ``executed``: it becomes another program, whose name is the message.
        code: the script's own exit code, if it named one; of ``own_signal``, which signal.
        exception: type of the exception, with its module (``torch.OutOfMemoryError``).
        message: what the exception says.
        traceback: the user's frames of it, as text.
        last_step: the newest step that was begun; None before the first.
        evidence: sentences for the report.
        phase: one of `EXIT_PHASES`.
        memory: figures of memory at the end, in GiB or counts.
        asks_batch_size: the script called `supervisor.batch_size`.
        offers_checkpointing: a model offers activation checkpointing that is not on.
        outside: why neither script nor data are to blame, see `OutsideCause`; else empty.
        replaying: the fast-forward had not reached its checkpoint yet.
        stopped_by, stopped_s: the signal that may have ended it, by whomever it was sent to this
            process, and how many seconds before; see `ScriptSignals.stopped`.
        sick: why a training that came to its end is no good; empty if it is not known to be bad.
        time: when it was written, unix seconds; of several ranks' notes the first is the cause.
    """

    kind: str
    code: int | None = None
    exception: str = ""
    message: str = ""
    traceback: str = ""
    last_step: int | None = None
    evidence: tuple[str, ...] = ()
    phase: str = "training"
    memory: Mapping[str, Any] = field(default_factory=dict)
    asks_batch_size: bool = False
    offers_checkpointing: bool = False
    replaying: bool = False
    outside: str = field(default="", metadata={"one_of": ("", *OutsideCause)})
    stopped_by: int | None = None
    stopped_s: float = 0.0
    sick: str = ""
    time: float = 0.0


def save_exit_note(rundir: RunDirectory, attempt: int, rank: int, note: ExitNote) -> None:
    """Writes the note of one rank, durably, its texts masked, and hands it to the parent with what
    the disk has refused."""
    fields = plain(mask_all(note))
    KEPT.replace(rundir.exit_note(attempt, rank), json.dumps(fields, indent=2) + "\n")
    KEPT.try_again(now=True)
    if handover.mine is not None:
        handover.mine.ends(fields, KEPT.kept())


def note_of(fields: Mapping[str, Any] | None) -> ExitNote | None:
    """Returns the note of these fields; None if they are none of a note."""
    try:
        return None if fields is None else build_record(ExitNote, fields)
    except ValueError:
        return None


def load_exit_note(rundir: RunDirectory, attempt: int, rank: int) -> ExitNote | None:
    """Returns the note of one rank; None if it left none, or none that can be read."""
    try:
        return load_record(rundir.exit_note(attempt, rank), ExitNote, help_text="")
    except RunDirectoryError:
        return None
