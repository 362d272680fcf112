"""Keeps what the batches since the last look were to each normalisation.

Running means and variances: what the batches that a normalisation has seen make of them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from supervisor.worker.core.budget import Share

AGREES = 0.25
"""Of the largest value that went into an element: rounding in BF16 is a tenth of it at most."""


class BatchStatistics(NamedTuple):
    """Of one batch, as torch has kept them for the backward.

    Attributes:
        inverse_std: one over the root of the variance and `eps`.
        given: values of the whole batch.
        momentum: the batch's share in the running values.
    """

    mean: torch.Tensor
    inverse_std: torch.Tensor
    given: int
    momentum: float
    eps: float


@dataclass(frozen=True, slots=True)
class Followed:
    """A running value, computed from an earlier one and all batches since; on the host, FP32.

    Attributes:
        value: what it must be.
        scale: the largest that went into each element.
        keep: share of the earlier value that is left in it.
    """

    value: torch.Tensor
    scale: torch.Tensor
    keep: float

    @property
    def is_finite(self) -> bool:
        return bool(torch.isfinite(self.value).all() and torch.isfinite(self.scale).all())

    def differs(self, now: torch.Tensor) -> torch.Tensor:
        """Returns which elements of `now` cannot have come from these batches."""
        return ~((now - self.value).abs() <= AGREES * self.scale)


def followed_mean(then: torch.Tensor, batches: Sequence[BatchStatistics]) -> Followed:
    means = [batch.mean for batch in batches]
    return _follow(then, batches, _on_host(means, then), 0.0)


def followed_variance(then: torch.Tensor, batches: Sequence[BatchStatistics]) -> Followed:
    """Torch normalises by the variance of the batch, but keeps the unbiased one."""
    roots = _on_host([batch.inverse_std for batch in batches], then)
    eps = _column([batch.eps for batch in batches])
    counts = [batch.given // then.numel() for batch in batches]
    unbiased = _column([count / max(1, count - 1) for count in counts])
    values = (1 / roots.square() - eps).clamp(min=0) * unbiased
    return _follow(then, batches, values, max((batch.eps for batch in batches), default=0.0))


def _follow(
    then: torch.Tensor, batches: Sequence[BatchStatistics], values: torch.Tensor, least: float
) -> Followed:
    keep, shares = 1.0, []
    for batch in reversed(batches):
        shares.append(batch.momentum * keep)
        keep *= 1 - batch.momentum
    start = then.detach().float()
    value = keep * start + (_column(shares[::-1]) * values).sum(0)
    scale = torch.cat([start[None], values]).abs().amax(0) + least
    return Followed(value, scale, keep)


def _on_host(tensors: Sequence[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    if not tensors:
        return torch.empty(0, like.numel())
    return torch.stack([*tensors]).float().cpu()


def _column(values: Sequence[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32).view(-1, 1)


MANY = 1000
"""Batches between two looks after which nothing is claimed: each keeps two tensors alive."""
COST_S = 3e-6
"""Of one batch of one normalisation, on a CPU (docs/design/cost.md)."""
BUDGET = Share(0.003)
"""Of the training's time: one normalisation for each millisecond of a step."""
KEEPING = frozenset({"NativeBatchNormBackward0", "CudnnBatchNormBackward0"})
"""Functions of autograd that keep the batch's mean and inverse deviation."""

_packing: Callable[[bool], Any] = getattr(
    torch._C._autograd, "_top_saved_tensors_default_hooks", lambda _: "unknown"
)
"""Torch 2.6 does not tell whether someone packs; then no batch is claimed to be known."""
_writes: Callable[[torch.Tensor], int] = operator.attrgetter("_version")


class RunningValues:
    """The running mean and variance of one normalisation.

    Attributes:
        batches: that went into them since the last look, oldest first: what `BatchStatistics` is
            made of.
        is_whole: all is known since the last look.
    """

    __slots__ = ("_written", "batches", "is_whole", "mean", "variance")

    def __init__(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        self.mean = mean
        self.variance = variance
        self.batches: list[tuple[Any, ...]] = []
        self.is_whole = False  # what was before the first batch, nobody saw
        self._written = (-1, -1)

    def checked(self) -> None:
        self.batches = []
        self.is_whole = True
        self._written = (_writes(self.mean), _writes(self.variance))

    @property
    def statistics(self) -> list[BatchStatistics]:
        return [BatchStatistics(*batch) for batch in self.batches]

    @property
    def is_known(self) -> bool:
        """Whether batches alone have changed them: torch counts no writes of a normalisation."""
        written = (_writes(self.mean), _writes(self.variance))
        return self.is_whole and written == self._written


class NormalisationWatch:
    """Called at each normalisation of a batch, in the training's own thread.

    Attributes:
        is_on: it wants to see batches.
    """

    def __init__(self) -> None:
        self.is_on = True
        self._known: dict[int, RunningValues] = {}  # by id of the mean, which is kept alive

    def saw(
        self,
        mean: torch.Tensor,
        variance: torch.Tensor,
        given: torch.Tensor,
        output: torch.Tensor,
        momentum: float,
        eps: float,
    ) -> None:
        """A batch was normalised, and has changed the running values.

        Args:
            given, output: of the normalisation.
        """
        known = self._known.get(id(mean))
        if known is None or known.variance is not variance:
            known = self._known[id(mean)] = RunningValues(mean, variance)
        if not known.is_whole:
            return
        node, batches = output.grad_fn, known.batches
        if (
            type(node).__name__ not in KEEPING
            or len(batches) >= MANY
            # Someone packs what autograd keeps; to unpack it may compute all of a forward again.
            or _packing(True) is not None
        ):
            known.is_whole = False
            return
        # Every microsecond counts here: a tuple is made in a quarter of the time of a named one.
        batches.append((node._saved_result1, node._saved_result2, given.numel(), momentum, eps))  # type: ignore[union-attr]

    def keep_to_budget(self, steps: int, usual_s: float) -> float:
        """Ends the watch for good if it costs too much; returns its share of the time.

        Args:
            steps: since the last look.
            usual_s: of one of them; 0 if it is not known.
        """
        seen = sum(len(known.batches) for known in self._known.values())
        if not (self.is_on and seen and steps > 0 and usual_s > 0.0):
            return 0.0
        cost_s = seen / steps * COST_S
        if not BUDGET.allows(cost_s, usual_s):
            self.is_on = False
            self._known.clear()
        return cost_s / usual_s

    def checked(self) -> None:
        """The state as it is now is kept: from here on every batch counts."""
        self._known = {key: v for key, v in self._known.items() if v.batches or not v.is_whole}
        for known in self._known.values():
            known.checked()

    def begin_anew(self) -> None:
        """Something else than batches has changed the state."""
        for known in self._known.values():
            known.is_whole = False

    def known(self) -> list[RunningValues]:
        return [known for known in self._known.values() if known.is_known]
