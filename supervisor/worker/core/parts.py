"""All parts of a worker: each moment is one loop over those that have something to do then."""

from __future__ import annotations

import contextlib
import functools
import math
import traceback
from collections.abc import Callable, Sequence

from supervisor.errors import pass_on
from supervisor.events.state_events import WarningEvent
from supervisor.storage.journal.journal import Journal
from supervisor.worker.core.boundaries import BoundarySchedule
from supervisor.worker.core.breakers import Breaker, Breakers
from supervisor.worker.core.part import Arrived, Ended, Part, SavePoint


class Parts:
    """Called by the two drivers, at a save, at an arrival and at the end; in one order.

    Args:
        parts: in their order; what leaves comes last, because it raises.
        schedule: keeps when the next boundary is needed; the live driver passes others by.
        breakers: has a breaker for each part: one that fails too often is left out.
        journal: is told what fails at the end.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        schedule: BoundarySchedule,
        breakers: Breakers,
        journal: Journal,
    ) -> None:
        self.schedule = schedule
        self.breakers = breakers
        self._journal = journal
        self._all = [(part, breakers(part.name)) for part in parts]
        self._at_boundary = self._of("at_boundary", "next_boundary")
        self._starting = breakers("census")
        self._has_started = False

    @property
    def all(self) -> list[Part]:
        """In their order."""
        return [part for part, _ in self._all]

    @property
    def names(self) -> list[str]:
        """Of all, in their order."""
        return [part.name for part, _ in self._all]

    def training_starts(self) -> bool:
        """See `Part.training_starts`; returns whether this was the first call."""
        if self._has_started:
            return False
        self._has_started = True
        with self._starting:
            for part, _ in self._of("training_starts"):
                part.training_starts()
        return True

    def before_first_update(self) -> None:
        for part, breaker in self._of("before_first_update"):
            if breaker.is_on:
                with breaker:
                    part.before_first_update()

    def at_boundary(self, step: int) -> None:
        """Called with the number of steps done.

        Raises:
            ExitRequest: a person, the parent or a treatment wants this process to end.
        """
        for part, breaker in self._at_boundary:
            if breaker.is_on:
                try:
                    part.at_boundary(step)
                except BaseException as error:
                    breaker.caught(error)
        next_step = next_time = saving_time = math.inf
        for part, breaker in self._at_boundary:
            if breaker.is_on:
                with breaker:
                    at_step, at_time = part.next_boundary(step)
                    next_step, next_time = min(next_step, at_step), min(next_time, at_time)
                    saving_time = min(saving_time, at_time if part.may_save else math.inf)
        self.schedule.plan(next_step, next_time, saving_time)

    def save(self, point: SavePoint) -> None:
        for part, _ in self._of("save"):
            part.save(point)

    def before_state(self) -> None:
        for part, _ in self._of("before_state"):
            part.before_state()

    def after_state(self, arrived: Arrived) -> list[str]:
        """Returns why the resume is not exact, of all parts."""
        return [why for part, _ in self._of("after_state") for why in part.after_state(arrived)]

    def goes_live(self, arrived: Arrived) -> None:
        for part, breaker in self._of("goes_live"):
            with breaker:
                part.goes_live(arrived)

    def ends(self, how: Ended) -> None:
        for part, _ in self._of("ends"):
            self.guarded(functools.partial(part.ends, how))

    def guarded(self, call: Callable[[], object]) -> object:
        """Calls what is done at the end; returns None where it fails, which the journal tells."""
        try:
            return call()
        except BaseException as error:
            pass_on(error)
            with contextlib.suppress(Exception):  # the disk may be full or gone
                said = f"at the end: {type(error).__name__}: {error}"
                trace = "".join(traceback.format_exception(error))
                self._journal.write(WarningEvent(message=said, trace=trace))
            return None

    def _of(self, *moments: str) -> list[tuple[Part, Breaker]]:
        """Those that have something to do at one of these moments."""
        return [
            (part, breaker)
            for part, breaker in self._all
            if any(getattr(type(part), name) is not getattr(Part, name) for name in moments)
        ]
