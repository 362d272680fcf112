"""How far the weights have moved where the loss leaps: no farther than always, if they are not to
blame.

Weights that are ruined have moved, by a rate or a gradient that was too large, or because memory
was damaged. Where labels mean something else, or a term of the loss counts more, the loss leaps
with weights that went on as always.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch

from supervisor.detectors.statistics.leap import LEAP, is_leap
from supervisor.errors import pass_on
from supervisor.ladder.single_leap import MOVED
from supervisor.training_state.model_state import named_tensors
from supervisor.training_state.optimizer_state import optimizer_parameters
from supervisor.training_state.registry import Registry
from supervisor.training_state.snapshot import Snapshot, SnapshotRing
from supervisor.training_state.tensors import outside_autograd

LOSSES = 32
"""A loss that lies a leap above the highest of so many last ones is looked into."""
FEWEST = 10
LOOKS = 3
"""Steps in a row that are looked at, while the loss stays there."""

_ORDINARY = (torch.Tensor, torch.nn.Parameter)
_Course = tuple[list[torch.Tensor], torch.Tensor]
"""A tensor in each snapshot, oldest first, and now."""


class WeightMoves:
    """Called at every step, before its update. At the first error it is over, and that is told.

    Args:
        snapshots: what the weights were before.
        tell: called with a sentence for the journal.
    """

    def __init__(
        self,
        registry: Registry,
        snapshots: SnapshotRing,
        *,
        is_on: bool = True,
        tell: Callable[[str], object] = lambda told: None,
    ) -> None:
        self._registry = registry
        self._snapshots = snapshots
        self._is_on = is_on
        self._tell = tell
        self.forget()

    def forget(self) -> None:
        """Another training begins."""
        self._losses: deque[float] = deque(maxlen=LOSSES)
        self._line = math.inf
        self._looks = 0

    def judge(self, step: int, loss: float) -> dict[str, float]:
        """Returns what is to be observed at this step: nothing, or how far the weights have moved
        since the newest snapshot, as a multiple of how far between any two before.

        Args:
            loss: NaN if it is not known.
        """
        if not (self._is_on and math.isfinite(loss) and self._is_high(loss)):
            return {}
        try:
            moved = self._moved(step)
        except BaseException as error:  # a tensor of a kind that cannot be compared like others
            pass_on(error)
            self._is_on = False
            self._tell(f"moves of weights are not looked at: {type(error).__name__}: {error}")
            return {}
        return {MOVED: moved} if math.isfinite(moved) else {}

    def _is_high(self, loss: float) -> bool:
        losses = self._losses
        if self._looks == LOOKS:  # it stays: usual from here on
            losses.clear()
            self._looks = 0
        if loss <= self._line:
            self._looks = 0
        if not self._looks:
            highest = max(losses) if len(losses) >= FEWEST else math.inf
            if not is_leap(loss, highest):
                losses.append(loss)
                return False
            self._line = highest + LEAP * abs(highest)
        self._looks += 1
        return True

    def _moved(self, step: int) -> float:
        """The largest of all tensors; infinite where one that is trained cannot be compared."""
        older = [snapshot for snapshot in self._snapshots.all() if snapshot.step < step]
        if len(older) < 2:
            return math.inf
        since = step - older[-1].step
        longer = [max(1.0, since / (b.step - a.step)) for a, b in pairwise(older)]
        with outside_autograd():
            moves = [_times_usual(kept, now, longer) for kept, now in self._courses(older)]
        return max(moves, default=math.inf) if all(map(math.isfinite, moves)) else math.inf

    def _courses(self, snapshots: Sequence[Snapshot]) -> list[_Course]:
        """Of all weights and buffers; none where one that is trained is not in each of them."""
        trained = {
            id(parameter)
            for optimizer in self._registry.optimizers.values()
            for parameter in optimizer_parameters(optimizer)
        }
        found: list[_Course] = []
        for name, model in self._registry.models.items():
            models = [snapshot.state["models"].get(name, {}) for snapshot in snapshots]
            parameters, buffers = named_tensors(model)
            for path, now in (parameters | buffers).items():
                kept = [tensors.get(path) for tensors in models]
                if type(now) in _ORDINARY and _are_one(kept, now):
                    trained.discard(id(now))
                    found.append((kept, now.detach()))
        return [] if trained else found


def _are_one(kept: Sequence[object], now: torch.Tensor) -> bool:
    """Whether the copies are of this tensor, and it has numbers that move."""
    return now.is_floating_point() and all(
        isinstance(copy, torch.Tensor) and copy.shape == now.shape and copy.dtype is now.dtype
        for copy in kept
    )


def _times_usual(kept: Sequence[torch.Tensor], now: torch.Tensor, longer: list[float]) -> float:
    """Of the farthest that it moved between any two snapshots; over fewer steps than now it counts
    as if it had gone on."""
    if not now.numel():
        return 0.0
    way = _farthest(kept[-1].to(now.device), now)
    if not way:
        return 0.0
    between = zip(pairwise(kept), longer, strict=True)
    usual = max(times * _farthest(*pair) for pair, times in between)
    return way / usual if usual else math.inf


def _farthest(one: torch.Tensor, other: torch.Tensor) -> float:
    return float(_item((one - other).abs().max().float()))


# Not `.item()`: this read is ours, and is not on the tape.
_item: Callable[[torch.Tensor], float] = torch._C.TensorBase.item
