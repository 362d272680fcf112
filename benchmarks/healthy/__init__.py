"""Small trainings with nothing wrong with them, whatever their losses look like."""

from benchmarks.healthy import (
    margins,
    mixed_sign,
    near_zero,
    on_purpose,
    other_data,
    other_objectives,
    other_weights,
    small_start,
)
from benchmarks.healthy.base import Training

KINDS: dict[str, Training] = {
    **margins.TRAININGS,
    **near_zero.TRAININGS,
    **mixed_sign.TRAININGS,
    **on_purpose.TRAININGS,
    **small_start.TRAININGS,
    **other_weights.TRAININGS,
    **other_data.TRAININGS,
    **other_objectives.TRAININGS,
}
