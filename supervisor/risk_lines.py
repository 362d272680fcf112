"""From which risk on trouble is taken seriously: the lines that a policy draws."""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.settings import PolicySettings

CALM_SHARE = 0.5
"""Of the alarm line: below it a run counts as calm again. A gap keeps noise at the line from
ending and beginning an episode by turns."""


@dataclass(frozen=True, slots=True)
class RiskLines:
    """The only place that compares a risk with a policy's thresholds.

    Made from the policy by everybody who judges, treats, saves or shows. No evidence at all is
    never trouble, wherever the lines are.
    """

    warn: float
    alarm: float

    @classmethod
    def of(cls, policy: PolicySettings) -> RiskLines:
        return cls(warn=policy.warn_threshold, alarm=policy.alarm_threshold)

    def is_warning(self, risk: float) -> bool:
        """A cheap reaction is worth it."""
        return risk > 0.0 and risk >= self.warn

    def is_alarm(self, risk: float) -> bool:
        """A costly reaction is worth it."""
        return risk > 0.0 and risk >= self.alarm

    def is_calm(self, risk: float) -> bool:
        """Trouble seems to be over."""
        return risk < CALM_SHARE * self.alarm
