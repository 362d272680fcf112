"""Keeps errors of ours away from the user's loop."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from types import TracebackType

from supervisor.codes import Warned
from supervisor.errors import pass_on
from supervisor.events.state_events import WarningEvent
from supervisor.storage.journal.journal import Journal

LIMIT = 3
"""A part that fails as often is off."""


class Breakers:
    """``with barrier("clipping"): ...`` swallows what goes wrong inside and says so once.

    A part that failed `LIMIT` times is off: it is told, and whoever calls the part asks `is_on`
    first. Where an essential part is off the whole supervision of this process is: the training
    goes on as without us. What passes: see `errors.pass_on`.

    Args:
        journal: is told of the first failure of a part, and of what is off.
        turn_off: ends the supervision of this process.
        lose_replay: called when a part failed that writes what a replay needs.
    """

    def __init__(
        self, journal: Journal, turn_off: Callable[[], None], lose_replay: Callable[[], None]
    ) -> None:
        self._parts: dict[str, Breaker] = {}
        self._journal = journal
        self._turn_off = turn_off
        self._lose_replay = lose_replay

    def __call__(
        self,
        name: str,
        *,
        is_essential: bool = False,
        records: bool = False,
        when_off: Callable[[], None] | None = None,
    ) -> Breaker:
        """Returns the part of this name, made at the first call.

        Args:
            is_essential: nothing can be supervised without it.
            records: it writes what a replay needs.
            when_off: called once when it is switched off.
        """
        found = self._parts.get(name)
        if found is None:
            found = self._parts[name] = Breaker(name, self, is_essential, records)
        if when_off is not None:
            found.when_off = when_off
        return found

    def failed(self, part: Breaker, error: BaseException) -> None:
        """Takes note of a failure; never raises."""
        part.failures += 1
        try:
            if part.failures >= LIMIT:
                part.turn_off()
            if part.records:
                self._lose_replay()
            if not part.is_on and part.is_essential:
                self._turn_off()
            if part.failures == 1:
                short = f"{type(error).__name__}: {error}"
                told = f"supervisor: {part.name} failed: {short}"
                trace = "".join(traceback.format_exception(error))
                self._journal.write(WarningEvent(message=told, trace=trace))
            if part.failures == LIMIT:
                what = "supervision is" if part.is_essential else f"{part.name} is switched"
                told = f"{what} off: {part.name} failed {LIMIT} times"
                self._journal.write(WarningEvent(message=told, aloud=True, found=Warned.PART_OFF))
        except BaseException as problem:  # a full disk, an error that cannot be shown
            pass_on(problem)


class Breaker:
    """Switches a part of ours off that fails too often.

    Attributes:
        is_on: it has not failed too often, and nobody has switched it off.
    """

    __slots__ = ("_breakers", "failures", "is_essential", "is_on", "name", "records", "when_off")

    def __init__(self, name: str, breakers: Breakers, is_essential: bool, records: bool) -> None:
        self.name = name
        self.failures = 0
        self.is_on = True
        self.is_essential = is_essential
        self.records = records
        self.when_off: Callable[[], None] = _nothing
        self._breakers = breakers

    def turn_off(self) -> None:
        """It failed too often, or must do nothing any more."""
        if self.is_on:
            self.is_on = False
            self.when_off()

    def caught(self, error: BaseException) -> None:
        """The same for an ``except BaseException`` clause, which costs nothing until it is needed.

        Raises:
            BaseException: `error` itself, see `pass_on`.
        """
        pass_on(error)
        self._breakers.failed(self, error)

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if error is None:
            return False
        self.caught(error)
        return True


def _nothing() -> None:
    """Nobody waits for most parts."""
