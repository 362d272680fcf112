"""What the script itself does to weights between two updates: a loss that rises with it is meant.

A target network takes over the learner's weights, an opponent is replaced, a layer begins anew,
earlier weights are put back, another head is trained as well, another optimizer takes over. What
damages weights looks otherwise: it is not counted as a write, or makes them large.
"""

from __future__ import annotations

import math
import operator
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice

import torch
from torch.optim import Optimizer

from supervisor.detectors.statistics.changes import (
    ANOTHER_OPTIMIZER,
    CHANGE,
    OTHER_PARAMETERS,
    REFERENCE,
    REWRITTEN,
)
from supervisor.training_state.optimizer_state import optimizer_parameters
from supervisor.training_state.registry import Registry
from supervisor.training_state.snapshot import Snapshot, SnapshotRing
from supervisor.training_state.tensors import outside_autograd
from supervisor.worker.corruption.corrupted_tensor import GROWN
from supervisor.worker.corruption.update_watch import UpdateWatch

LOSSES = 32
"""A loss above the highest of so many last ones is looked into."""
FEWEST = 10
RECENT = 2
"""Steps for which a change explains a rise of the loss."""
REST = 5
"""Steps without a write before one to a reference is an event: what is written to at each step
follows slowly."""
REFERENCES = 8
"""Networks that are looked at, by one tensor each."""
REFRESH = 16
"""Steps after which new networks are looked for."""

_writes: Callable[[torch.Tensor], int] = operator.attrgetter("_version")


class ScriptChanges:
    """Called at every step, before its update.

    Args:
        watch: knows which writes to trained weights are updates.
        snapshots: what the weights were before.
    """

    def __init__(
        self, registry: Registry, watch: UpdateWatch, snapshots: SnapshotRing, *, is_on: bool = True
    ) -> None:
        self.registry = registry
        self.watch = watch
        self._snapshots = snapshots
        self._is_on = is_on
        self._references: list[tuple[weakref.ref[torch.Tensor], int]] = []
        self.forget()

    def forget(self) -> None:
        """Another training begins."""
        self._losses: deque[float] = deque(maxlen=LOSSES)
        self._size = 0
        self._main: Callable[[], Optimizer | None] = lambda: None
        self._seen = 0
        self._anew = self.watch.times_anew
        self._written_at = self._changed_at = -math.inf
        self._change = 0.0
        self._find_references()

    def look(self, step: int, main: Optimizer, size: int) -> None:
        """The first half of `judge`, while the loss is still to come from a device."""
        if self._is_on:
            self._take_in(step, main, size)

    def judge(
        self, step: int, loss: float, main: Optimizer | None = None, size: int = 0
    ) -> dict[str, float]:
        """Returns what is to be observed at this step.

        Args:
            loss: NaN if it is not known.
            main: the optimizer whose update is a step; None after `look`.
            size: number of tensors that it trains.
        """
        if not self._is_on:
            return {}
        if main is not None:
            self._take_in(step, main, size)
        losses = self._losses
        is_high = len(losses) >= FEWEST and math.isfinite(loss) and loss > max(losses)
        if math.isfinite(loss):
            losses.append(loss)
        if not is_high:
            return {}
        if step - self._changed_at >= RECENT and not self._is_rewritten(step):
            return {}
        change = self._change if step - self._changed_at < RECENT else REWRITTEN
        self._changed_at = -math.inf  # told
        self.watch.rewriting_is_known()
        losses.clear()
        return {CHANGE: change}

    def _take_in(self, step: int, main: Optimizer, size: int) -> None:
        self._seen += 1
        if self.watch.times_anew != self._anew:  # we have written ourselves
            self._anew = self.watch.times_anew
            self._changed_at = -math.inf
            self._find_references()
        elif self._references and self._has_reference_changed():
            if step - self._written_at > REST:
                self._changed_at, self._change = step, REFERENCE
            self._written_at = step
            self._find_references()
        elif self._seen % REFRESH == 0:
            self._find_references()
        if main is not self._main():
            if self._size:
                self._changed_at, self._change = step, ANOTHER_OPTIMIZER
            self._main = weakref.ref(main)
        elif size != self._size:
            self._changed_at, self._change = step, OTHER_PARAMETERS
        self._size = size

    def _has_reference_changed(self) -> bool:
        for reference, count in self._references:
            tensor = reference()
            if tensor is not None and _writes(tensor) != count:
                return True
        return False

    def _find_references(self) -> None:
        found = islice(self._untrained_networks(), REFERENCES)
        self._references = [(weakref.ref(parameter), _writes(parameter)) for parameter in found]

    def _untrained_networks(self) -> Iterator[torch.Tensor]:
        """Yields a tensor of each network of which nothing is trained."""
        trained: set[int] = set()
        for optimizer in self.registry.optimizers.values():
            trained.update(map(id, optimizer_parameters(optimizer)))
        for model in self.registry.models.values():
            first = None
            for parameter in model.parameters():
                if id(parameter) in trained:
                    break
                first = parameter if first is None else first
            else:
                if first is not None and not first.is_inference():
                    yield first

    def _is_rewritten(self, step: int) -> bool:
        """Whether the script has written to trained weights as it does not usually, and none of
        them has grown: they were made anew or put back, and are not damaged."""
        parameters = {id(parameter): parameter for parameter in self.watch.rewritten()}
        snapshot = self._snapshots.before(step) if parameters else None
        if snapshot is None:
            return False
        pairs = [
            (parameter, kept)
            for name, model in self.registry.models.items()
            for path, parameter in model.named_parameters()
            if id(parameter) in parameters
            and (kept := _kept(snapshot, name, path, parameter)) is not None
        ]
        with outside_autograd():
            return bool(pairs) and not any(_has_grown(now, kept) for now, kept in pairs)


def _kept(
    snapshot: Snapshot, model: str, path: str, parameter: torch.Tensor
) -> torch.Tensor | None:
    kept = snapshot.state["models"].get(model, {}).get(path)
    is_alike = isinstance(kept, torch.Tensor) and kept.shape == parameter.shape
    return kept if is_alike else None


def _has_grown(now: torch.Tensor, kept: torch.Tensor) -> bool:
    largest, before = (float(_item(t.detach().abs().max().float())) for t in (now, kept))
    return not largest <= GROWN * before


# Not `.item()`: this read is ours, and is not on the replay log.
_item: Callable[[torch.Tensor], float] = torch._C.TensorBase.item
