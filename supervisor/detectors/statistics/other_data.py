"""Whether it is the data with which a loss leaves its course."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from supervisor.records import StepRecord

SHIFT = "input_shift"
"""Observed where a batch is of another distribution than those before: how far, 1.0 at the line.
Live runs look only where the loss is above all of the last steps, or a reward below
(`supervisor.worker.live.input_watch`)."""

SCALE = "input_scale"
"""Observed beside it: the spread of the batch's numbers against the usual one."""

OTHER_SHAPE = 1000.0
"""The shift of samples that have another shape than all known ones, which have one and the same:
longer texts or larger images from here on."""

STEPS = 2
"""Such batches in a row are other data; a single one is an odd batch."""

REST = 100
"""Steps after new data were adopted in which no others are: what goes on changing drifts, as a
scale does that grows at every step. A shape does not."""

IN_RANGE = 3.0
"""Times the usual spread, or a part of it: beyond, numbers are not normalised any more, or carry
nothing, and nobody wants that. Of the corpus' train and validation splits data changed on purpose
have 0.9 to 1.1 times the spread, damaged ones 3.9 and more."""


def is_odd_batch(record: StepRecord) -> bool:
    """Whether the inputs come from another distribution, and lie within the usual range."""
    scale = record.observed.get(SCALE, 1.0)
    return record.observed.get(SHIFT, 0.0) >= 1.0 and 1.0 / IN_RANGE <= scale <= IN_RANGE


class OtherData:
    """Tells data that were changed from data that were damaged, and from a single odd batch.

    A loss that rises with other inputs is no sickness of the weights: they have not seen such data.
    Where labels are damaged the inputs are the same, and where inputs are not normalised any more
    their spread is another one: both stay alarms.

    Attributes:
        waits: the batch of this step is the first odd one: the next one shows whether it is the
            batch, the data or the weights, and an alarm waits for it.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.waits = False
        self._last = -1
        self._adopted = -REST

    def update(self, record: StepRecord) -> str:
        """Takes in a step; returns the sentence with which new data are adopted, or nothing."""
        shift = record.observed.get(SHIFT, 0.0)
        rests = 0 <= record.step - self._adopted < REST and shift != OTHER_SHAPE
        if shift < 1.0 or rests:
            self.waits = False
            return ""
        again = self.waits and record.step == self._last + 1
        self.waits, self._last = not again, record.step
        scale = record.observed.get(SCALE, 1.0)
        if not again or not is_odd_batch(record):
            return ""
        self._adopted = record.step
        if shift == OTHER_SHAPE:
            return (
                f"since step {record.step - 1} the inputs have another shape, and the loss of "
                f"{record.loss:.6g} belongs to them: the new level is adopted"
            )
        return (
            f"since step {record.step - 1} the inputs come from another distribution ({shift:.3g} "
            f"times as far from the usual as the line, {scale:.3g} times the spread), and the loss "
            f"of {record.loss:.6g} belongs to them: the new level is adopted"
        )

    def state_dict(self) -> dict[str, Any]:
        return {"waits": self.waits, "last": self._last, "adopted": self._adopted}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.waits, self._last = bool(state["waits"]), int(state["last"])
        self._adopted = int(state["adopted"])
