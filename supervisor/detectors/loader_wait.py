"""A training that waits for its data."""

from __future__ import annotations

from supervisor.detectors.observed_line import ObservedLineDetector
from supervisor.records import Cause, Severity


class LoaderWaitDetector(ObservedLineDetector):
    """Share of a step's time that the script waited for a loader (looks, ``loader_wait_share``).

    Args:
        line: share; half of the time is what more loader workers can win back.
        patience: looks in a row; the first batch of an epoch always takes longer.
    """

    name = "loader_wait"
    key = "loader_wait_share"
    severity = Severity.LOW
    category = "resources"
    kind = "loader_stall"
    cause = Cause.RESOURCES

    def __init__(self, *, line: float = 0.5, patience: int = 5) -> None:
        super().__init__(line=line, patience=patience)

    def message(self, value: float) -> str:
        return (
            f"{value:.0%} of a step is spent waiting for data, {self.patience} looks in a "
            "row; more loader workers, or cheaper loading, would speed the training up"
        )
