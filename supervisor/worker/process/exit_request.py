"""How a worker leaves its process on purpose, in the middle of the user's loop."""

from __future__ import annotations

from supervisor.errors import PassesGuards

RESUMABLE_EXIT = 75
TREATED_EXIT = 71
SHORT = "short"
LOADING = "loading"
_EXITS = {"interrupted": RESUMABLE_EXIT, "completed": 0}


class ExitRequest(PassesGuards, SystemExit):
    """Raised at a boundary; the user's ``finally`` blocks run, ``except Exception`` does not.

    Attributes:
        note: kind of the exit note: ``interrupted``, ``restart``, ``retry``, ``stop``, `SHORT`,
            `LOADING` or ``completed``.
        reason: one sentence for the parent.
    """

    def __init__(self, note: str, reason: str) -> None:
        super().__init__(_EXITS.get(note, TREATED_EXIT))
        self.note = note
        self.reason = reason
