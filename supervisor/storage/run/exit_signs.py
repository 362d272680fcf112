"""What messages of the system, torch and its loaders say about the way a process ended.

The one place where such text becomes a code: for the event of the exit, and for a report on a run
whose parent was gone before it could write one.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Iterator

from supervisor.codes import ExitSign, OutsideCause

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
