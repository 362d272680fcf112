"""One subject of supervision, and the moments at which it is called.

The moments are rare: the start, the boundary between two steps, a save, the arrival of a resume,
the end. What happens within a forward, a backward or an update is written out in the two drivers,
the live run's and the replay's (docs/design/house.md).

What answers a subject's own patches: one in a live run, another in a replay.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from supervisor.events.state_events import Resumed
from supervisor.training_state.script_state.reach import Reach


class Part:
    """Called in the order of `worker/build.py`; every moment is optional. A new part is one class
    and one line there.

    Attributes:
        name: in messages, and of its breaker: three errors switch it off, and nothing else.
        may_save: the state at a boundary that it asks for by its time.
    """

    name: ClassVar[str]
    may_save: ClassVar[bool] = True

    def training_starts(self) -> None:
        """Called once before the first forward or update, live and in a replay. If it fails, what
        comes later in the order does not start: without the first script state no resume is
            exact."""

    def before_first_update(self) -> None:
        """The optimizer is known and nothing was updated yet. Not called after a resume."""

    def at_boundary(self, step: int) -> None:
        """Called at each boundary that any part needs, with the steps done. The state is whole."""

    def next_boundary(self, step: int) -> tuple[float, float]:
        """When it has something to do next, at the earliest.

        Args:
            step: of this boundary.

        Returns:
            Steps done and `time.monotonic()`, whichever comes first; a step of 0 is the next one.
        """
        return math.inf, math.inf

    def save(self, point: SavePoint) -> None:
        """Adds what a checkpoint holds of it; live, not copied. An error ends this checkpoint: one
        that lacks a part would be taken for whole."""

    def before_state(self) -> None:
        """A replay has arrived, and nothing is put back yet: arrays may be mapped files.

        Raises:
            Exception: any ends the process, here and in `after_state`: no script goes on with half
                a state.
        """

    def after_state(self, arrived: Arrived) -> list[str]:
        """State and variables are put back; returns why the resume is not exact."""
        return []

    def goes_live(self, arrived: Arrived) -> None:
        """All ranks have arrived, and the live driver answers again."""

    def ends(self, how: Ended) -> None:
        """Called once at the end of the process, when nothing is seen any more; whatever other
        parts do, and also of one that is off."""


ALWAYS = (0.0, math.inf)
"""Of a part that needs the next boundary."""


@dataclass(slots=True, kw_only=True)
class SavePoint:
    """What a checkpoint will hold, gathered at one boundary, where every step before is judged.

    Attributes:
        frames: the variables of the script; `call` what the call under way works on. They are
            gathered once for all parts, and what they lead to is walked once, by `reach`.
        held: tensors and arrays of the script that a checkpoint must hold now.
        for_later: it may never be written.
        state: tensors, for the checkpoint's state.
        meta: plain values, for its manifest.
        sections: files of their own, by name.
    """

    frames: Mapping[str, Mapping[str, Any]]
    call: Mapping[str, Any]
    reach: Reach
    held: Mapping[str, Any]
    for_later: bool = False
    state: dict[str, Any] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)
    sections: dict[str, Any] = field(default_factory=dict)

    def hold(self, state: Mapping[str, Any]) -> None:
        """Adds to the state.

        Raises:
            KeyError: another part has added one of these.
        """
        self.state |= _new(self.state, state)

    def note(self, meta: Mapping[str, Any]) -> None:
        """Adds to the manifest. Raises as `hold` does."""
        self.meta |= _new(self.meta, meta)


@dataclass(slots=True, kw_only=True)
class Arrived:
    """A resume that stands at its checkpoint.

    Attributes:
        step: of the checkpoint, with its `path`, `state` and `meta`.
        texts: those that differ by nature between processes, as they were and as they are.
        said: what the journal says of it; None before all ranks have arrived.
        is_exact: nothing speaks against it, and nothing is changed on purpose.
        is_whole: the step under way is seen from its first backward on.
    """

    step: int
    path: Path
    state: Mapping[str, Any]
    meta: Mapping[str, Any]
    texts: Iterable[tuple[str, str]] = ()
    said: Resumed | None = None
    is_exact: bool = False
    is_whole: bool = True

    @property
    def steps_recorded(self) -> int:
        """Where the step recorder stood when the checkpoint was made."""
        return int(self.meta.get("steps_recorded") or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How the process ends.

    Attributes:
        steps: done.
        completed: the script came to its end.
        parts: it ends before its time, and its newest state is worth saving.
    """

    steps: int
    completed: bool
    parts: bool


def _new(known: Mapping[str, Any], added: Mapping[str, Any]) -> Mapping[str, Any]:
    if twice := known.keys() & added.keys():
        raise KeyError(f"two parts save {', '.join(sorted(twice))}")
    return added


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
