"""Whether the batches still look like those before: another distribution, or content never seen.

A small sample of each step's input is kept; nothing is computed of it. Only where the loss rises
beyond all of the last steps is the newest one compared with those before: a change of the data
raises the loss as trouble does, but trouble comes with the same data.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import torch

from supervisor.detectors.statistics.other_data import OTHER_SHAPE, SCALE, SHIFT, STEPS
from supervisor.errors import pass_on
from supervisor.prediction.moving_objective import reward_of
from supervisor.worker.ground.step_probe import items_of
from supervisor.worker.live.batch_sample import (
    BatchSample,
    UsualBatches,
    sample_of,
    spread_of_others,
)

KNOWN = 48
"""Batches that a new one is compared with."""

FEWEST = 10
"""Batches without which nothing can be called unusual."""

LOSSES = 32
"""A loss above the highest of so many last ones is looked into, and a reward below the lowest."""

STALE = 500
"""Steps for which what is usual is not found out anew, unless a batch seems to be odd."""


class InputWatch:
    """Called at every step: `saw` at its forwards, `judge` before its update.

    Only the first input of the first forward that learns counts: the input by convention. Targets,
    noise and masks come after it, and where a targets' distribution changes alone, labels are
    damaged. At the first error the watch is over, and that is told.

    Args:
        is_on: False looks at nothing.
        tell: called with a sentence for the journal.
    """

    def __init__(
        self, *, is_on: bool = True, tell: Callable[[str], object] = lambda told: None
    ) -> None:
        self._is_on = is_on
        self._tell = tell
        self.forget()

    def forget(self) -> None:
        """Another training begins: its data need not be those of the last one."""
        self._now: BatchSample | None = None
        self._known: deque[BatchSample] = deque(maxlen=KNOWN)
        self._odd: list[BatchSample] = []
        self._losses: deque[float] = deque(maxlen=LOSSES)
        self._falls: deque[float] = deque(maxlen=LOSSES)
        self._usual: UsualBatches | None = None
        self._usual_at = self._batches = 0

    def saw(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """A forward of the whole model begins."""
        if self._now is not None or not self._is_on or not torch.is_grad_enabled():
            return
        if torch._C._len_torch_dispatch_stack():  # the script sees or counts each operation
            return
        try:
            with torch._C.DisableTorchFunction():
                tensor = _first_input(args, kwargs)
                if tensor is not None:
                    self._now = sample_of(tensor)
        except BaseException as error:  # a tensor of a kind that cannot be looked at like others
            pass_on(error)
            self._give_up(error)

    def judge(self, loss: float, observed: Mapping[str, float]) -> dict[str, float]:
        """Returns what is to be observed at this step: nothing, or of how different a distribution
        its batch is, `SHIFT` in units of the line, and `SCALE`, its spread against the usual one.

        Args:
            observed: by the script; a reward counts like a loss.
        """
        batch, self._now = self._now, None
        if batch is None or not self._is_on:
            return {}
        try:
            return self._judge(batch, loss, reward_of(observed))
        except BaseException as error:
            pass_on(error)
            self._give_up(error)
            return {}

    def _give_up(self, error: BaseException) -> None:
        self._is_on = False
        self.forget()
        self._tell(f"batches are not looked at any more: {type(error).__name__}: {error}")

    def _judge(self, batch: BatchSample, loss: float, reward: float) -> dict[str, float]:
        losses, falls = self._losses, self._falls
        if self._odd or _is_high(loss, losses) or _is_high(-reward, falls):
            shift, scale = self._compare(batch)
            if shift >= 1.0:
                self._odd.append(batch)
                if len(self._odd) == STEPS:  # other data, and no batch: usual from here on
                    self._known.clear()
                    self._known.extend(self._odd)
                    self._usual = None
                    losses.clear()
                    falls.clear()
                    self._odd.clear()
                return {SHIFT: shift, SCALE: scale}
        self._odd.clear()
        self._known.append(batch)
        self._batches += 1
        if math.isfinite(loss):
            losses.append(loss)
        falls.append(-reward)
        return {}

    def _compare(self, batch: BatchSample) -> tuple[float, float]:
        """(distance in units of the line, spread against the usual one)."""
        shapes = {one.shape for one in self._known}
        if len(self._known) >= FEWEST and len(shapes) == 1 and batch.shape not in shapes:
            return OTHER_SHAPE, spread_of_others(batch, self._known)
        usual = self._usual
        if usual is not None and usual.is_like(batch) and self._batches - self._usual_at < STALE:
            shift, scale = usual.compare(batch)
            if shift < 1.0:
                return shift, scale
        known = [one for one in self._known if one.is_like(batch)]
        if len(known) < FEWEST:
            return 0.0, 1.0
        self._usual, self._usual_at = UsualBatches(known), self._batches
        return self._usual.compare(batch)


def _is_high(loss: float, losses: deque[float]) -> bool:
    if len(losses) < FEWEST or not math.isfinite(loss):
        return False
    return loss > max(losses)


def _first_input(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.Tensor | None:
    named = [v for k, v in kwargs.items() if "label" not in k and "target" not in k]
    for value in (*args, *named) if named else args:
        for one in (value,) if isinstance(value, torch.Tensor) else items_of(value):
            if type(one) is torch.Tensor and one.layout is torch.strided:
                return one
    return None
