"""What answers a subject's own patches: one in a live run, another in a replay."""

from __future__ import annotations

from typing import Generic, TypeVar

S = TypeVar("S")


class Sides(Generic[S]):
    """A subject's two answers: the replay's until it has arrived, then the live run's.

    Attributes:
        now: who answers.
    """

    __slots__ = ("_live", "now")

    def __init__(self, live: S, replay: S | None = None) -> None:
        self.now = live if replay is None else replay
        self._live = live

    def goes_live(self) -> None:
        """The replay has arrived, or could not."""
        self.now = self._live
