"""Inputs that are not what they were, as far as the loss cares."""

from __future__ import annotations

from supervisor.detectors.base import Detector
from supervisor.detectors.statistics.changes import IN_RANGE, SCALE, SHIFT, OtherData
from supervisor.records import Alert, Cause, Severity, StepRecord


class OtherDataDetector(Detector):
    """Batches of another distribution (``input_shift``), where the loss rises with them.

    One whose numbers have another spread (``input_scale``) is told at once: it is not normalised as
    the others are, or carries nothing. Other data within the usual range are told when a second
    batch has shown that they stay.
    """

    name = "other_data"
    observed_only = True
    _state = ("_judge",)

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._judge = OtherData()

    def forget_levels(self) -> None:
        """What it adopts is announced in the same step; its lines do not depend on levels."""

    def update(self, record: StepRecord) -> Alert | None:
        adopted = self._judge.update(record)
        shift = record.observed.get(SHIFT, 0.0)
        self.score = float(self._judge.waits)
        scale = record.observed.get(SCALE, 1.0)
        if adopted:
            return self.alert(
                record,
                severity=Severity.MEDIUM,
                category="data",
                kind="other_data",
                cause=Cause.OTHER,
                message=adopted,
                value=shift,
                threshold=1.0,
            )
        if shift < 1.0 or 1.0 / IN_RANGE <= scale <= IN_RANGE:
            return None
        return self.alert(
            record,
            severity=Severity.HIGH,
            category="data",
            kind="inputs_out_of_range",
            cause=Cause.OTHER,
            message=(
                f"the numbers of this batch spread {scale:.3g} times as far as usual, and the loss "
                "rises with them; look at what normalises or decodes the samples"
            ),
            value=scale,
            threshold=IN_RANGE,
        )
