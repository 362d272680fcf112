"""What a detector is, and how a config's section ``detectors`` becomes a list of them."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from typing import Any, ClassVar

from supervisor.codes import Subject
from supervisor.records import Alert, Cause, Severity, StepRecord


class Detector(ABC):
    """Watches one kind of trouble, one step at a time.

    A subclass names its settings as keyword-only arguments of its constructor, lists in `_state`
    the attributes that change from step to step, and sets those in `_begin`, which the constructor
    must call last. A state attribute is a plain value, a list or deque of such, or an object with
    `state_dict` and `load_state_dict`. Detectors use no clock, file or randomness: the same records
    give the same alerts (`supervisor.testing.check_detector` checks this).

    Attributes:
        name: key in the config and in the predictor's scores.
        score: how near the last step came to the alarm line; 0 is calm, 1.0 the line itself.
        observed_only: while its score is 0 it need not be asked about steps without observed
            values.
    """

    name: str = "detector"
    _state: ClassVar[tuple[str, ...]] = ()
    observed_only: ClassVar[bool] = False
    score: float = 0.0

    @abstractmethod
    def update(self, record: StepRecord) -> Alert | None:
        """Takes in one step, sets `score`, returns what there is to say. Never raises."""

    def _begin(self) -> None:  # noqa: B027  (a detector without state needs none)
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
        """Returns what `load_state_dict` of an equal detector needs to continue; JSON-able."""
        state: dict[str, Any] = {"score": self.score}
        for name in self._state:
            state[name] = _pack(getattr(self, name))
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from `state`. Raises KeyError if it is another detector's."""
        self.score = float(state["score"])
        for name in self._state:
            setattr(self, name, _unpack(getattr(self, name), state[name]))

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


def _pack(value: Any) -> Any:
    if hasattr(value, "state_dict"):
        return value.state_dict()
    if isinstance(value, deque):
        return list(value)
    return copy.copy(value)


def _unpack(current: Any, state: Any) -> Any:
    if hasattr(current, "load_state_dict"):
        current.load_state_dict(state)
        return current
    if isinstance(current, deque):
        return deque(state, maxlen=current.maxlen)
    return copy.copy(state)
