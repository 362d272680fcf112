"""Whether the batches still look like those before: another distribution, or content never seen.

A small sample of each step's input is kept; nothing is computed of it. Only where the loss rises
beyond all of the last steps is the newest one compared with those before: a change of the data
raises the loss as trouble does, but trouble comes with the same data.

A small sample of a batch, and how far it is from those that are usual.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from supervisor.detectors.statistics.changes import OTHER_SHAPE, SCALE, SHIFT, STEPS
from supervisor.errors import pass_on
from supervisor.prediction.moving_objective import reward_of
from supervisor.worker.core.step_probe import items_of

Numbers = npt.NDArray[np.float32]

ROWS, COLUMNS = 32, 32
"""Of a batch: 4 KiB of numbers."""

FEW = 4
"""Samples of each known batch that samples are compared with."""

WHOLE = 6
"""Known batches of which all samples count where those few are the same ones each time."""

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

NEAR = 0.01
"""Deviations of a number between two samples that are the same one, as far as is computed here."""

FARTHEST = 30.0
"""Deviations from the middle that count at most."""

_MULTIPLIERS = np.array([1, 31, 1009, 65_537], dtype=np.int64)


@dataclass(slots=True)
class BatchSample:
    """Some numbers of a batch where they were, and what was computed of them, if anything.

    Attributes:
        is_content: whole numbers that stand for something (tokens): alike or not, never near.
        features: the numbers, or the places of their contents in a table; None until computed.
        shape: of one of its samples.
        spread: standard deviation of the numbers.
    """

    sample: torch.Tensor
    is_content: bool
    shape: tuple[int, ...] = ()
    features: Any = None
    spread: float = math.nan

    def is_like(self, other: BatchSample) -> bool:
        """Whether the two can be compared."""
        if self.is_content or other.is_content:
            return self.is_content and other.is_content
        return self.sample.shape[1] == other.sample.shape[1]


def spread_of_others(batch: BatchSample, known: Sequence[BatchSample]) -> float:
    """The spread of a batch against the usual one of batches that it cannot be compared with."""
    _compute((*known, batch))
    usual = float(np.median([one.spread for one in known]))
    return min(batch.spread / usual, 1e9) if usual > 0 else 1.0


def sample_of(tensor: torch.Tensor) -> BatchSample | None:
    """Rows spread over the batch; of texts their beginnings, of others numbers spread over each."""
    kind = tensor.dtype
    if not tensor.numel() or kind is torch.bool or kind.is_complex:
        return None
    is_content = not kind.is_floating_point and kind is not torch.uint8
    rows = tensor.detach() if tensor.requires_grad else tensor
    if rows.dim() != 2:
        rows = _flat(rows)
    (height, width), (down, right) = rows.shape, rows.stride()
    each = max(1, height // ROWS)
    across = 1 if is_content else max(1, width // COLUMNS)
    size = min(ROWS, -(-height // each)), min(COLUMNS, -(-width // across))
    sample = rows.as_strided(size, (down * each, right * across)).clone()
    return BatchSample(sample, is_content, tuple(tensor.shape[1:]))


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Each row in one dimension; not all of it where that would copy it (channels last)."""
    if tensor.dim() < 2:
        return tensor.reshape(-1, 1)
    try:
        return tensor.view(len(tensor), -1)
    except RuntimeError:
        rows = tensor[:: max(1, len(tensor) // ROWS)][:ROWS]
        each = max(1, int(COLUMNS ** (1 / (rows.dim() - 1))))
        for dim, size in enumerate(rows.shape[1:], 1):
            rows = rows[(slice(None),) * dim + (slice(None, None, max(1, size // each)),)]
        return rows.reshape(len(rows), -1)


class UsualBatches:
    """What is usual of some batches that are alike, worked out once."""

    def __init__(self, known: Sequence[BatchSample]) -> None:
        _compute(known)
        self._one = known[0]
        self._spread = float(np.median([one.spread for one in known]))
        features = [one.features for one in known]
        self._usual = _Contents(features) if known[0].is_content else _Samples(features)

    def is_like(self, batch: BatchSample) -> bool:
        return self._one.is_like(batch)

    def compare(self, batch: BatchSample) -> tuple[float, float]:
        """(how far `batch` is, in units of the line; its spread against the usual one)."""
        _compute((batch,))
        usual = self._spread
        scale = batch.spread / usual if usual > 0 else (1.0 if batch.spread == usual else 1e9)
        return self._usual.distance(batch.features), min(scale, 1e9)


class _Samples:
    """How many samples lie farther from all known ones than those do from each other."""

    def __init__(self, known: Sequence[Numbers]) -> None:
        self._learn([one[:: max(1, len(one) // FEW)][:FEW] for one in known])
        if not self._line:  # a training on one batch: its other samples are as usual
            self._learn(known[-WHOLE:])

    def _learn(self, rows: Sequence[Numbers]) -> None:
        places = np.repeat(np.arange(len(rows)), [len(one) for one in rows])
        usual = np.concatenate(rows)
        self._middle, spread = usual.mean(0), usual.std(0)
        least = np.maximum(1e-3 * np.abs(self._middle), 0.1 * np.median(spread)) + 1e-9
        self._deviation = np.maximum(spread, least)
        self._usual = (usual - self._middle) / self._deviation
        apart = _squares(self._usual, self._usual)
        apart[places[:, None] == places] = np.inf
        line = float(np.quantile(apart.min(1), 1 - RARE))
        self._line = line if line > NEAR**2 * usual.shape[1] else 0.0

    def distance(self, fresh: Numbers) -> float:
        off = np.clip((fresh - self._middle) / self._deviation, -FARTHEST, FARTHEST)
        line = max(self._line, NEAR**2 * off.shape[1])
        share = float((_squares(off, self._usual).min(1) > line).mean())
        return (share - RARE) / (SIGMAS * math.sqrt(RARE * (1 - RARE) / len(fresh)))


class _Contents:
    """How much content never came, beyond how much of each known batch comes in no other."""

    def __init__(self, known: Sequence[npt.NDArray[Any]]) -> None:
        self._counts = counts = np.bincount(np.concatenate(known), minlength=TABLE)
        alone = [(counts - np.bincount(o, minlength=TABLE) == 0)[o].mean() for o in known]
        self._share = float(np.mean(alone))
        self._line = MARGIN * max(max(alone) - self._share, 0.05)

    def distance(self, fresh: npt.NDArray[Any]) -> float:
        return float(((self._counts[fresh] == 0).mean() - self._share) / self._line)


def _compute(batches: Sequence[BatchSample]) -> None:
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
        batch.features = _contents(values) if batch.is_content else values.astype(np.float32)


def _contents(values: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Places in a table of each `WORDS` neighbouring numbers."""
    words = min(WORDS, values.shape[1])
    whole = values.astype(np.int64)
    width = whole.shape[1] - words + 1
    mixed = sum(whole[:, i : i + width] * _MULTIPLIERS[i] for i in range(words))
    return np.asarray((mixed * 2_654_435_761 >> 7) % TABLE, dtype=np.int64).ravel()


def _squares(one: Numbers, other: Numbers) -> Numbers:
    """Squared distances of all pairs of rows; no BLAS, whose threads would wait for busy cores."""
    own, others = np.square(one).sum(1), np.square(other).sum(1)
    return np.asarray(own[:, None] + others - 2.0 * np.einsum("ik,jk->ij", one, other))


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
                tensor = args[0] if args and type(args[0]) is torch.Tensor else None
                if tensor is None or tensor.layout is not torch.strided:
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
            return self._judge(batch, loss, reward_of(observed) if observed else math.nan)
        except BaseException as error:
            pass_on(error)
            self._give_up(error)
            return {}

    def take(self) -> BatchSample | None:
        """Returns what `saw` has kept of the step's input, for `judge_earlier`."""
        batch, self._now = self._now, None
        return batch

    def judge_earlier(
        self, batch: BatchSample | None, loss: float, observed: Mapping[str, float]
    ) -> dict[str, float]:
        """As `judge`, when the next step has begun."""
        now, self._now = self._now, batch
        try:
            return self.judge(loss, observed)
        finally:
            self._now = now if self._is_on else None

    def _give_up(self, error: BaseException) -> None:
        self._is_on = False
        self.forget()
        self._tell(f"batches are not looked at any more: {type(error).__name__}: {error}")

    def _judge(self, batch: BatchSample, loss: float, reward: float) -> dict[str, float]:
        losses, falls = self._losses, self._falls
        is_finite = math.isfinite(loss)
        is_high = is_finite and len(losses) >= FEWEST and loss > max(losses)
        if self._odd or is_high or (reward == reward and _is_high(-reward, falls)):
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
        if is_finite:
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
