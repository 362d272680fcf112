"""The values of a step by name, as other programs get them."""

from __future__ import annotations

import math
from collections.abc import Mapping

from supervisor.records import StepRecord
from supervisor.storage.steps.step_rows import (
    ANNOUNCED,
    BEGINS_TRAINING,
    IN_ENVIRONMENT,
    OTHERS_TRAINED,
)

COLUMNS = ("loss", "grad_norm", "lr", "loss_scale", "step_time_s", "batch_size", "memory_gib")
MARKS = {
    "others_trained": OTHERS_TRAINED,
    "begins_training": BEGINS_TRAINING,
    "announced": ANNOUNCED,
    "in_environment": IN_ENVIRONMENT,
}
"""Values that are 1 at the steps that have their flag, and absent elsewhere."""


def step_values(record: StepRecord) -> Mapping[str, float]:
    """Returns the observed values of a step, NaN included."""
    values = {name: float(getattr(record, name)) for name in COLUMNS}
    seen = {"loss": record.loss_seen, "grad_norm": record.grad_norm_seen}
    known = {name: value for name, value in values.items() if seen.get(name, not math.isnan(value))}
    if record.batch_size:
        known["batch_size"] = record.batch_size
    else:
        known.pop("batch_size")
    known |= {name: 1 for name in MARKS if getattr(record, name)}
    return {**known, **record.observed}
