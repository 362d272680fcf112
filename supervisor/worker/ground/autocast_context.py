"""The `torch.autocast` context that the training is in."""

from __future__ import annotations

import torch

OLDER_CASTS = (
    "torch.autocast was on before earlier updates: its casts of the weights as they were then "
    "are in no checkpoint"
)
CASTS_STAY = (
    "torch.autocast is switched on once around several updates: it keeps its casts of the weights "
    "until it is left, so the forwards do not see the updates. Enter it anew for each step"
)


class AutocastContext:
    """Knows since when torch keeps casts of weights: until the outermost context is left."""

    def __init__(self) -> None:
        self._entered_at = 0

    def enters(self, steps: int) -> None:
        """Called before a context is entered, in the training's thread.

        Args:
            steps: done so far.
        """
        if not _depth():
            self._entered_at = steps

    def has_older_casts(self, steps: int) -> bool:
        """Whether the context under way was entered before the last of some steps was done, or
        nothing will clear the casts: autocast was switched on without one.

        Args:
            steps: that count.
        """
        if not steps or not torch.is_autocast_cache_enabled():
            return False
        is_on: bool = torch._C._is_any_autocast_enabled()
        return self._entered_at < steps if _depth() else is_on


def _depth() -> int:
    torch.autocast_increment_nesting()
    return int(torch.autocast_decrement_nesting())
