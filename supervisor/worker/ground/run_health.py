"""What judging has found out of the run so far."""

from __future__ import annotations

from collections import deque

from supervisor.risk_lines import RiskLines

TROUBLE_STEPS = 20
"""After an alarm the state counts as doubtful for the predictor's horizon."""

RECENT_NORMS = 1000
"""Enough for the quantiles that clipping asks for."""


class RunHealth:
    """Written where steps are judged; read where states are kept and treatments chosen.

    Attributes:
        risk: of the step judged last.
        last_trouble_step: the last step with an alarm or a treatment that goes back; -1 for none.
        bad_losses: how many of the last steps in a row had an update by a loss that is not finite.
        recent_grad_norms: of the last steps, before our clipping, oldest first; finite ones only.
    """

    def __init__(self, lines: RiskLines) -> None:
        self.risk = 0.0
        self.last_trouble_step = -1
        self.bad_losses = 0
        self.recent_grad_norms: deque[float] = deque(maxlen=RECENT_NORMS)
        self._lines = lines

    @property
    def is_warning(self) -> bool:
        return self._lines.is_warning(self.risk)

    @property
    def is_alarm(self) -> bool:
        return self._lines.is_alarm(self.risk)

    def in_trouble(self, step: int) -> bool:
        """Whether the state of this step may be sick: an alarm is on, or was a moment ago."""
        return self.last_trouble_step >= 0 and step - self.last_trouble_step <= TROUBLE_STEPS
