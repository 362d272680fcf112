"""The note that a worker leaves when it ends, in ``exits/attempt_<n>/rank_<r>.json``.

No note means that the process was killed, or ended by the interpreter itself.

What messages of the system, torch and its loaders say about the way a process ended.

The one place where such text becomes a code: for the event of the exit, and for a report on a run
whose parent was gone before it could write one.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from supervisor.codes import ExitSign, OutsideCause
from supervisor.errors import RunDirectoryError
from supervisor.masking import mask_all
from supervisor.records import plain
from supervisor.storage.files.json_files import build_record, load_record
from supervisor.storage.files.kept_writes import KEPT
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
        leaves: `sys.exit` or `os._exit` ended a script that came to its end; where its own copy
            goes on, it has put itself into the background.
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
    leaves: bool = False
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


_LOADER_DIED = re.compile(r"DataLoader worker .*(exited unexpectedly|killed by signal)")
_SIGNS = (
    (ExitSign.NO_SPACE, re.compile(r"No space left on device")),
    (ExitSign.FILE_TOO_LARGE, re.compile(r"File too large")),
    (ExitSign.QUOTA_EXCEEDED, re.compile(r"Disk quota exceeded")),
    (ExitSign.LOADER_DIED, _LOADER_DIED),
)
_ASKED_FOR = re.compile(r"tried to allocate (\d+) bytes")


def sign_of(texts: Iterable[str]) -> ExitSign | None:
    """Returns the sign in the first of `texts` that has one.

    On a full disk torch itself only says that a stream failed; the traceback names the reason.
    """
    for text in texts:
        for sign, words in _SIGNS:
            if words.search(text):
                return sign
    return None


def bytes_asked_for(texts: Iterable[str]) -> int | None:
    """Returns how much memory was asked for at once, where the allocator says it."""
    found = (_ASKED_FOR.search(text) for text in texts)
    return next((int(match.group(1)) for match in found if match), None)


_NUMBERS = {
    OutsideCause.DISK: "ENOSPC EROFS EIO EDQUOT EFBIG ESTALE ENODEV ENXIO EREMOTEIO ENOLCK",
    OutsideCause.MEMORY: "ENOMEM",
    OutsideCause.LIMIT: "EMFILE ENFILE EAGAIN",
    OutsideCause.CONNECTION: "ECONNRESET ECONNREFUSED ECONNABORTED EPIPE ENOTCONN ESHUTDOWN "
    "ENETDOWN ENETUNREACH ENETRESET EHOSTDOWN EHOSTUNREACH EADDRINUSE EADDRNOTAVAIL",
    OutsideCause.TIMEOUT: "ETIMEDOUT",
}
_BY_NUMBER = {
    getattr(errno, name): cause
    for cause, names in _NUMBERS.items()
    for name in names.split()
    if hasattr(errno, name)
}
_BY_TYPE = (
    (OutsideCause.TIMEOUT, re.compile(r"Timeout|TimedOut")),
    (OutsideCause.CONNECTION, re.compile(r"Connect|Network|HTTP|SSL|Proxy|gaierror|^Dist.+Error$")),
    (OutsideCause.MEMORY, re.compile(r"^MemoryError$")),
)
"""Of a class or one of its bases: libraries of the network have trees of their own."""
_BY_TEXT = (
    (OutsideCause.DISK, re.compile(r"iostream error|PytorchStreamWriter|unexpected pos \d+ vs")),
    (OutsideCause.TIMEOUT, re.compile(r"DataLoader timed out")),
    (OutsideCause.SIGNAL, _LOADER_DIED),
    *((cause, re.compile(re.escape(os.strerror(number)))) for number, cause in _BY_NUMBER.items()),
)
"""torch writes files in C++, which forgets the number; a loader's process sends only the text."""
_ERRNO = re.compile(r"\[Errno (\d+)\]")


def outside_cause(error: BaseException) -> OutsideCause | None:
    """Returns what neither script nor data are to blame for, if `error` came of such a thing.

    A file that is not there, or that cannot be decoded, may be a sample: None.
    """
    return next((found for one in _chain(error) if (found := _outside(one))), None)


def _outside(error: BaseException) -> OutsideCause | None:
    found = _BY_NUMBER.get(error.errno or 0) if isinstance(error, OSError) else None
    names = [kind.__name__ for kind in type(error).__mro__]
    found = found or next((c for c, sign in _BY_TYPE if any(map(sign.search, names))), None)
    if found is None and isinstance(error, (OSError, RuntimeError)):
        text = str(error)
        told = _ERRNO.search(text)
        found = _BY_NUMBER.get(int(told.group(1))) if told else None
        found = found or next((c for c, sign in _BY_TEXT if sign.search(text)), None)
    return found


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yields an exception and those that it came of."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
