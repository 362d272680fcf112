"""What a detector is, and how a config's section ``detectors`` becomes a list of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from supervisor.codes import Subject
from supervisor.detectors.statistics.named_state import NamedState
from supervisor.records import Alert, Cause, Severity, StepRecord


class Detector(NamedState, ABC):
    """Watches one kind of trouble, one step at a time.

    A subclass names its settings as keyword-only arguments of its constructor (or is a dataclass
    whose fields they are), lists in `_state` the attributes that change from step to step
    (`NamedState`), and sets those in `_begin`, which a constructor of its own must call last.
    Detectors use no clock, file or randomness: the same records give the same alerts
    (`supervisor.testing.check_detector` checks this).

    Attributes:
        name: key in the config and in the predictor's scores.
        score: how near the last step came to the alarm line; 0 is calm, 1.0 the line itself.
        observed_only: while its score is 0 it need not be asked about steps without observed
            values.
    """

    name: str = "detector"
    observed_only: ClassVar[bool] = False
    score: float = 0.0

    def __post_init__(self) -> None:
        self._begin()

    @abstractmethod
    def update(self, record: StepRecord) -> Alert | None:
        """Takes in one step, sets `score`, returns what there is to say. Never raises."""

    def _begin(self) -> None:
        """Sets every attribute named in `_state` to what it is before the first step."""

    def reset(self) -> None:
        """Forgets everything seen; settings stay."""
        self.score = 0.0
        self._begin()

    def forget_levels(self) -> None:
        """Called when the script has announced a change (`supervisor.announce`), right before the
        `update` of the first step with it.

        By default everything seen is forgotten; a detector whose lines do not depend on the data
        keeps what it knows.
        """
        self.reset()

    def state_dict(self) -> dict[str, Any]:
        return {"score": self.score, **super().state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.score = float(state["score"])
        super().load_state_dict(state)

    def alert(
        self,
        record: StepRecord,
        *,
        severity: Severity,
        category: str,
        kind: str,
        cause: Cause,
        message: str,
        value: float = float("nan"),
        threshold: float = float("nan"),
        metadata: Mapping[str, Any] | None = None,
        advice: str = "",
        subject: Subject | None = None,
    ) -> Alert:
        """Returns an `Alert` about `record`; `advice` is appended to the message."""
        return Alert(
            detector=self.name,
            severity=severity,
            category=category,
            kind=kind,
            cause=cause,
            message=f"{message}; {advice}" if advice else message,
            step=record.step,
            value=value,
            threshold=threshold,
            metadata=metadata or {},
            subject=subject,
            fact=message if advice else "",
        )
