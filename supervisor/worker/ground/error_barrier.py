"""Keeps errors of ours away from the user's loop."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from types import TracebackType

from supervisor.fault_injection.injector import InjectedFault

LIMIT = 3


class ErrorBarrier:
    """``with shield("clipping"): ...`` swallows what goes wrong inside and says so once.

    A part that failed `LIMIT` times takes the whole supervision of this process down with it
    (`give_up`): the training goes on as without us. What passes: exceptions that are no
    `Exception` (leaving the process), and faults injected on purpose.

    Args:
        report: called with (part, short text, traceback text) for the first failure of a part.
        give_up: called with the part that failed too often.
    """

    def __init__(
        self, report: Callable[[str, str, str], None], give_up: Callable[[str], None]
    ) -> None:
        self._parts: dict[str, _Part] = {}
        self._report = report
        self._give_up = give_up

    def __call__(self, part: str) -> _Part:
        found = self._parts.get(part)
        if found is None:
            found = self._parts[part] = _Part(part, self)
        return found

    def failed(self, part: _Part, error: BaseException) -> None:
        part.failures += 1
        try:
            if part.failures == 1:
                text = "".join(traceback.format_exception(error))
                self._report(part.name, f"{type(error).__name__}: {error}", text)
            if part.failures >= LIMIT:
                self._give_up(part.name)
        except Exception:  # the disk may be full or gone; the training goes on all the same
            return


class _Part:
    __slots__ = ("_barrier", "failures", "name")

    def __init__(self, name: str, barrier: ErrorBarrier) -> None:
        self.name = name
        self.failures = 0
        self._barrier = barrier

    def caught(self, error: Exception) -> None:
        """The same for an ``except Exception`` clause, which costs nothing until it is needed.

        Raises:
            InjectedFault: `error` is one.
        """
        if isinstance(error, InjectedFault):
            raise error
        self._barrier.failed(self, error)

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if error is None or not isinstance(error, Exception) or isinstance(error, InjectedFault):
            return False
        self._barrier.failed(self, error)
        return True
