"""What messages of the system, torch and its loaders say about the way a process ended.

The one place where such text becomes a code: for the event of the exit, and for a report on a run
whose parent was gone before it could write one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from supervisor.codes import ExitSign

_SIGNS = (
    (ExitSign.NO_SPACE, re.compile(r"No space left on device")),
    (ExitSign.FILE_TOO_LARGE, re.compile(r"File too large")),
    (ExitSign.QUOTA_EXCEEDED, re.compile(r"Disk quota exceeded")),
    (
        ExitSign.LOADER_DIED,
        re.compile(r"DataLoader worker .*(exited unexpectedly|killed by signal)"),
    ),
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
