"""What is done between two steps, when the state is whole."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod


class BoundaryListener(ABC):
    """One thing that is done at boundaries. An error switches it off, and nothing else.

    Attributes:
        name: in messages, and of its `ErrorBarrier` part.
    """

    name: str

    @abstractmethod
    def at_boundary(self, step: int) -> None:
        """Called at each boundary that any listener needs, with the steps done."""

    def next_look(self, step: int) -> tuple[float, float]:
        """When it has something to do next, at the earliest.

        Args:
            step: of this boundary.

        Returns:
            Steps done and `time.monotonic()`, whichever comes first; a step of 0 is the next one.
        """
        return math.inf, math.inf

    def before_first_update(self) -> None:  # noqa: B027 (most do nothing then)
        """The optimizer is known and nothing was updated yet. Not called after a resume."""

    def continue_at(self, step: int) -> None:  # noqa: B027
        """A resume has put the state of `step` back: the rest of this boundary is done."""


ALWAYS = (0.0, math.inf)
"""Of a listener that needs the next boundary."""
