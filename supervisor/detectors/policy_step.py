"""A policy update that is too large."""

from __future__ import annotations

from supervisor.detectors.observed_line import ObservedLineDetector
from supervisor.records import Cause, Severity


class PolicyStepDetector(ObservedLineDetector):
    """KL between the policies before and after an update (observed ``approx_kl``, nats).

    Args:
        line: nats. PPO implementations end an epoch of updates at 0.01 to 0.05; a tenth is outside
            of what clipping was made for.
        patience: observations in a row.
    """

    name = "policy_step"
    key = "approx_kl"
    severity = Severity.MEDIUM
    category = "reward"
    kind = "policy_step_large"
    cause = Cause.LEARNING_RATE

    def __init__(self, *, line: float = 0.1, patience: int = 3) -> None:
        super().__init__(line=line, patience=patience)

    def message(self, value: float) -> str:
        return (
            f"an update moves the policy by {value:.3g} nats (line {self.line:g}), "
            f"{self.patience} times "
            "in a row; lower the learning rate, or do fewer epochs on each batch"
        )
