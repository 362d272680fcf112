"""Steps of which there is no more to know than a few numbers, and several of them as columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

from supervisor.records import StepRecord

TINY = 1e-12
"""What every part that takes logarithms counts as the smallest value, or a smaller one."""

HUGE = 1e150

OrdinaryStep: TypeAlias = tuple[int, float, float, float, float, int, float]
"""Step, loss, gradient norm, learning rate, seconds, batch size and memory in GiB. Most steps are
no more than this until they are judged together: one `StepRecord` in the middle of a training,
with nothing in the caches, costs several times what it does in the row of them that is made then
(docs/architecture.md)."""


def as_record(values: OrdinaryStep) -> StepRecord:
    step, loss, grad_norm, lr, step_time_s, batch_size, memory_gib = values
    return StepRecord(
        step=step,
        loss=loss,
        grad_norm=grad_norm,
        lr=lr,
        step_time_s=step_time_s,
        batch_size=batch_size,
        memory_gib=memory_gib,
        loss_seen=True,
        grad_norm_seen=True,
    )


def as_ordinary(record: StepRecord) -> OrdinaryStep | None:
    """The inverse of `as_record`; None for a record that says more."""
    is_special = (
        record.observed
        or record.scaler_skipped
        or record.others_trained
        or record.begins_training
        or record.announced
        or record.in_environment
    )
    if is_special or not (record.loss_seen and record.grad_norm_seen):
        return None
    if record.loss_scale == record.loss_scale:  # a scale is there: it is not NaN
        return None
    return (
        record.step,
        record.loss,
        record.grad_norm,
        record.lr,
        record.step_time_s,
        record.batch_size,
        record.memory_gib,
    )


class CalmSteps:
    """Ordinary steps in a row, for parts that can take in many at once (`Detector.take_calm`).

    Calm says nothing of the values but that they are as `are_plain` asks: whoever takes steps in
    looks at them.

    Attributes:
        steps: as they were recorded.
        losses, norms, lrs, times_s, memory_gib: a value each.
        log_losses, log_norms: their natural logarithms.
        batch_size: of all of them.
    """

    __slots__ = (
        "_records",
        "batch_size",
        "log_losses",
        "log_norms",
        "losses",
        "lrs",
        "memory_gib",
        "norms",
        "steps",
        "times_s",
    )

    def __init__(self, steps: Sequence[OrdinaryStep]) -> None:
        self.steps = steps
        _, self.losses, self.norms, self.lrs, self.times_s, sizes, self.memory_gib = zip(
            *steps, strict=True
        )
        self.batch_size = sizes[0]
        self.log_losses = list(map(math.log, self.losses))
        self.log_norms = list(map(math.log, self.norms))
        self._records: dict[int, StepRecord] = {}

    @staticmethod
    def are_plain(steps: Sequence[OrdinaryStep]) -> bool:
        """Whether they can be taken in this way: one batch size, which is known, and losses, norms
        and seconds above zero and finite."""
        _, losses, norms, _, times_s, sizes, memory_gib = zip(*steps, strict=True)
        return (
            0 < sizes[0] == min(sizes) == max(sizes)
            and _are_between(TINY, losses)
            and _are_between(TINY, norms)
            and _are_between(0.0, times_s)
            and _are_between(-1.0, memory_gib)
        )

    def __len__(self) -> int:
        return len(self.steps)

    def record(self, index: int) -> StepRecord:
        """One of them as a record, for whoever has to look closely."""
        found = self._records.get(index)
        if found is None:
            found = self._records[index] = as_record(self.steps[index])
        return found


def _are_between(low: float, values: Sequence[float]) -> bool:
    """Whether all lie above `low` and below `HUGE`; NaN does not, wherever it stands."""
    return all(low < value < HUGE for value in values)
