"""What all callbacks have in common: numbers for the step's record, and an end on an alert."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping
from typing import Any

from supervisor.codes import Severity
from supervisor.errors import UsageError, pass_on
from supervisor.records import Alert
from supervisor.worker.run import observe, on_alert

WORST_FIRST = tuple(severity.value for severity in Severity)


def observe_numbers(values: Mapping[str, Any]) -> None:
    """Adds those of `values` that are one number to the step's record; the others are left out.

    What is no letter or digit in a name becomes an underscore: ``val/loss`` is ``val_loss`` then.
    """
    found = {_name(key): _number(value) for key, value in values.items()}
    observe(**{name: value for name, value in found.items() if value is not None})


def as_bad_as(severity: str | None) -> tuple[str, ...]:
    """Returns this severity and the worse ones; none for None.

    Raises:
        UsageError: there is no such severity.
    """
    if severity is None:
        return ()
    if severity not in WORST_FIRST:
        raise UsageError(f"stop_at: {severity!r}: expected one of {', '.join(WORST_FIRST)}")
    return WORST_FIRST[: WORST_FIRST.index(severity) + 1]


def call_at(severities: tuple[str, ...], stop: Callable[[], None]) -> None:
    """Calls `stop` at each alert of one of these severities."""

    def look(alert: Alert) -> None:
        if alert.severity.value in severities:
            stop()

    if severities:
        on_alert(look)


def _name(key: str) -> str:
    return "".join(char if char.isalnum() else "_" for char in str(key))


def _number(value: Any) -> float | None:
    try:
        if hasattr(value, "numel") and value.numel() == 1:
            value = value.item()
        return float(value) if isinstance(value, numbers.Real) else None
    except BaseException as error:  # a metric of the script's own class
        pass_on(error)
        return None
