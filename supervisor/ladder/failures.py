"""Treatments that were of no use in this run, by the cause they were meant for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from supervisor.ladder.treatments import TreatmentOutcome
from supervisor.records import Cause

ENOUGH = 2
"""One failure may be bad luck; after the second the cause is another than the treatment's."""


class Failures:
    """Counts verdicts for the whole run, over all episodes; one that helped clears its count.

    A treatment that failed twice in a row for a cause is not tried for it again: what looks like
    trouble there may be the run's own course, and each repetition would cost training.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._failed: dict[str, int] = {}

    def take_in(self, outcomes: Iterable[TreatmentOutcome]) -> None:
        for found in outcomes:
            key = f"{found.cause}/{found.name}"
            if found.outcome == "helped":
                self._failed.pop(key, None)
            else:
                self._failed[key] = self._failed.get(key, 0) + 1

    def left(self, names: Sequence[str], cause: Cause) -> tuple[str, ...]:
        """Those of `names` that are still worth trying for `cause`."""
        return tuple(n for n in names if self._failed.get(f"{cause.value}/{n}", 0) < ENOUGH)

    def state_dict(self) -> dict[str, Any]:
        return dict(self._failed)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._failed = {str(key): int(count) for key, count in state.items()}
