"""Whether the batches still look like those before: another distribution, or content never seen.

A small sample of each step's input is kept; nothing is computed of it. Only where the loss rises
beyond all of the last steps is the newest one compared with those before: a change of the data
raises the loss as trouble does, but trouble comes with the same data.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from supervisor.detectors.statistics.other_data import SCALE, SHIFT, STEPS
from supervisor.predictor import reward_of

Numbers = npt.NDArray[np.float64]

ROWS, COLUMNS = 32, 32
"""Of a batch's sample: 4 KiB of numbers."""

KNOWN = 48
"""Batches that a new one is compared with."""

FEWEST = 10
"""Batches without which nothing can be called unusual."""

LOSSES = 32
"""A loss above the highest of so many last ones is looked into, and a reward below the lowest."""

FEW = 4
"""Samples of each known batch that samples are compared with."""

RARE = 0.05
"""Of the known samples so many lie farther from all of other batches than the line."""
SIGMAS = 8.0
"""Of a batch so many more, in units of chance, are other data."""

WORDS = 4
"""Neighbouring numbers that are content: a text of which most of these are new is another text,
while single tokens soon have all come up."""
TABLE = 1 << 14
MARGIN = 2.0
"""Times the most of new content that a known batch has. Less is the usual variety."""

_MULTIPLIERS = np.array([1, 31, 1009, 65_537], dtype=np.int64)


@dataclass(slots=True)
class _Batch:
    """A sample, and what was computed of it, if anything."""

    sample: torch.Tensor
    is_content: bool
    features: npt.NDArray[Any] = field(default_factory=lambda: np.empty(0))
    spread: float = math.nan

    def is_like(self, other: _Batch) -> bool:
        """Whether the two can be compared."""
        if self.is_content or other.is_content:
            return self.is_content and other.is_content
        return self.sample.shape[1] == other.sample.shape[1]


class InputWatch:
    """Called at every step: `saw` at its forwards, `judge` before its update.

    Only the first input of the first forward that learns counts: the input by convention. Targets,
    noise and masks come after it, and where a targets' distribution changes alone, labels are
    damaged. At the first error the watch is over.
    """

    def __init__(self, *, is_on: bool = True) -> None:
        self._is_on = is_on
        self.forget()

    def forget(self) -> None:
        """Another training begins: its data need not be those of the last one."""
        self._now: _Batch | None = None
        self._known: deque[_Batch] = deque(maxlen=KNOWN)
        self._odd: list[_Batch] = []
        self._losses: deque[float] = deque(maxlen=LOSSES)
        self._falls: deque[float] = deque(maxlen=LOSSES)

    def saw(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """A forward of the whole model begins."""
        if self._now is not None or not self._is_on or not torch.is_grad_enabled():
            return
        try:
            tensor = _first_input(args, kwargs)
            if tensor is not None:
                self._now = _sample(tensor)
        except Exception:  # a tensor of a kind that cannot be looked at like others
            self._is_on = False

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
        except Exception:
            self._is_on = False
            return {}

    def _judge(self, batch: _Batch, loss: float, reward: float) -> dict[str, float]:
        losses, falls = self._losses, self._falls
        if self._odd or _is_high(loss, losses) or _is_high(-reward, falls):
            shift, scale = self._compare(batch)
            if shift >= 1.0:
                self._odd.append(batch)
                if len(self._odd) == STEPS:  # other data, and no batch: usual from here on
                    self._known.clear()
                    self._known.extend(self._odd)
                    losses.clear()
                    falls.clear()
                    self._odd.clear()
                return {SHIFT: shift, SCALE: scale}
        self._odd.clear()
        self._known.append(batch)
        losses.append(loss)
        falls.append(-reward)
        return {}

    def _compare(self, batch: _Batch) -> tuple[float, float]:
        """(distance in units of the line, spread against the usual one)."""
        known = [one for one in self._known if one.is_like(batch)]
        if len(known) < FEWEST:
            return 0.0, 1.0
        _compute([*known, batch])
        usual = float(np.median([one.spread for one in known]))
        scale = batch.spread / usual if usual > 0 else (1.0 if batch.spread == usual else math.inf)
        find = _share_of_new if batch.is_content else _share_of_strangers
        shift = find(known, batch)
        return shift, min(scale, 1e9)


def _is_high(loss: float, losses: deque[float]) -> bool:
    if len(losses) < FEWEST or not math.isfinite(loss):
        return False
    return loss > max(losses)


def _first_input(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.Tensor | None:
    values = args or [v for k, v in kwargs.items() if "label" not in k and "target" not in k]
    for value in values:
        inner = list(value.values()) if isinstance(value, Mapping) else value
        for one in inner if isinstance(inner, (list, tuple)) else (inner,):
            if type(one) is torch.Tensor and one.layout is torch.strided:
                return one
    return None


def _sample(tensor: torch.Tensor) -> _Batch | None:
    """Rows spread over the batch; of texts their beginnings, of others numbers spread over each."""
    kind = tensor.dtype
    if not tensor.numel() or kind is torch.bool or kind.is_complex:
        return None
    is_content = not kind.is_floating_point and kind is not torch.uint8
    rows = tensor.detach().reshape(tensor.shape[0] if tensor.dim() else 1, -1)
    height, width = rows.shape
    across = 1 if is_content else max(1, width // COLUMNS)
    own = rows[:: max(1, height // ROWS), ::across][:ROWS, :COLUMNS]
    return _Batch(own.clone(), is_content)


def _compute(batches: list[_Batch]) -> None:
    """Fills in the features of those that have none yet; one transfer from their device."""
    fresh = [batch for batch in batches if math.isnan(batch.spread)]
    if not fresh:
        return
    flat = torch.cat([batch.sample.reshape(-1).double() for batch in fresh]).cpu().numpy()
    first = 0
    for batch in fresh:
        size = batch.sample.numel()
        values = flat[first : first + size].reshape(batch.sample.shape)
        first += size
        batch.spread = float(values.std())
        batch.features = _contents(values) if batch.is_content else values


def _contents(values: Numbers) -> npt.NDArray[np.int64]:
    """Places in a table of each `WORDS` neighbouring numbers."""
    words = min(WORDS, values.shape[1])
    whole = values.astype(np.int64)
    width = whole.shape[1] - words + 1
    mixed = sum(whole[:, i : i + width] * _MULTIPLIERS[i] for i in range(words))
    return np.asarray((mixed * 2_654_435_761 >> 7) % TABLE, dtype=np.int64).ravel()


def _share_of_strangers(known: list[_Batch], batch: _Batch) -> float:
    """How many samples lie farther from all known ones than those do from each other."""
    rows = [one.features[:: max(1, len(one.features) // FEW)][:FEW] for one in known]
    places = np.repeat(np.arange(len(rows)), [len(one) for one in rows])
    usual = np.concatenate(rows)
    middle, spread = usual.mean(0), usual.std(0)
    spread = np.maximum(spread, np.maximum(1e-3 * np.abs(middle), 0.1 * np.median(spread)) + 1e-9)
    usual = (usual - middle) / spread
    fresh = np.clip((batch.features - middle) / spread, -30.0, 30.0)
    among = np.where(places[:, None] == places, np.inf, _squares(usual, usual)).min(1)
    share = float((_squares(fresh, usual).min(1) > np.quantile(among, 1 - RARE)).mean())
    return (share - RARE) / (SIGMAS * math.sqrt(RARE * (1 - RARE) / len(fresh)))


def _squares(one: Numbers, other: Numbers) -> Numbers:
    """Squared distances of all pairs of rows."""
    own, others = np.square(one).sum(1), np.square(other).sum(1)
    return np.asarray(own[:, None] + others - 2.0 * one @ other.T)


def _share_of_new(known: list[_Batch], batch: _Batch) -> float:
    """How much of the content never came, beyond how much of each known batch comes in no other."""
    contents = [one.features for one in known]
    counts = np.bincount(np.concatenate(contents), minlength=TABLE)
    usual = np.array(
        [(counts - np.bincount(one, minlength=TABLE) == 0)[one].mean() for one in contents]
    )
    line = MARGIN * max(float(usual.max() - usual.mean()), 0.05)
    return float(((counts[batch.features] == 0).mean() - usual.mean()) / line)
