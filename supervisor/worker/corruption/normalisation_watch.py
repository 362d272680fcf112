"""Keeps what the batches since the last look were to each normalisation."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from supervisor.training_state.bounds.running_statistics import BatchStatistics

MANY = 1000
"""Batches after which nothing is claimed: a snapshot comes every 100 at the latest."""
COST_S = 3e-6
"""Of one batch of one normalisation, on a CPU (docs/design/cost.md)."""
MOST_OVERHEAD = 0.003
"""Share of the training's time: one normalisation for each millisecond of a step."""
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

    def looked(self) -> None:
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
        share = seen / steps * COST_S / usual_s
        if share > MOST_OVERHEAD:
            self.is_on = False
            self._known.clear()
        return share

    def looked(self) -> None:
        """The state as it is now is kept: from here on every batch counts."""
        self._known = {key: v for key, v in self._known.items() if v.batches or not v.is_whole}
        for known in self._known.values():
            known.looked()

    def begin_anew(self) -> None:
        """Something else than batches has changed the state."""
        for known in self._known.values():
            known.is_whole = False

    def known(self) -> list[RunningValues]:
        return [known for known in self._known.values() if known.is_known]
