"""Batches of a policy that teach nothing."""

from __future__ import annotations

from supervisor.detectors.observed_line import ObservedLineDetector
from supervisor.records import Cause, Severity


class NoAdvantageDetector(ObservedLineDetector):
    """Share of advantages that are zero (``zero_advantage_share``, of observed ``advantages``).

    With rewards compared within groups, a group whose answers are all right or all wrong has none.

    Args:
        line: share; with less than a tenth of the batch an update is mostly noise.
        patience: observations in a row; hard or easy tasks come in runs.
    """

    name = "no_advantage"
    key = "zero_advantage_share"
    severity = Severity.MEDIUM
    category = "reward"
    kind = "no_advantage"
    cause = Cause.PLATEAU

    def __init__(self, *, line: float = 0.9, patience: int = 20) -> None:
        super().__init__(line=line, patience=patience)

    def message(self, value: float) -> str:
        return (
            f"{value:.0%} of the advantages are zero for {self.patience} observations: the "
            "batches teach "
            "nothing; take tasks of another difficulty, or look at the reward"
        )
