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

NEED_A_LIVE_RUN = frozenset(
    {
        *("hard_targets", "growing", "pruning", "new_last_layer", "generations", "folds"),
        *("permuted_tasks", "relabelled_tasks", "classes_in_turn", "longer_sequences"),
        *("hard_samples", "wrong_labels", "growing_queue", "growing_returns"),
        *("reweighted_tasks", "raised_margin", "raised_residual"),
    }
)
"""Losses and norms alone look sick; a live run also looks at weights, optimizers and batches."""

STILL_TREATED = {
    "relabelled_tasks": "a gradient thousands of times the usual one: its update is left out",
    "growing_returns": "a value loss that grows with the returns of a hand-written environment",
}
"""Kind → why the default policy treats it, which is a known limit."""
