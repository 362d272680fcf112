"""One and the same batch at every update."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from supervisor.worker.mistakes.evidence.mistake import ForwardSeen, Mistake, Proof, SeenSoFar
from supervisor.worker.mistakes.evidence.places import ScriptLine, script_place
from supervisor.worker.mistakes.evidence.tensors_within import LARGE, first_tensor, is_fed, same

TIMES = 10


class SameBatch(Mistake):
    """``next(iter(loader))`` in the loop, of a loader that does not shuffle.

    Proof: ten iterators in a row, all of one loader that has further batches, each gave one batch
    and was left; between two of them was an update, and no other loader gave anything. Each batch
    had the bits of the first, and in the tenth round a training forward got them.

    Spares: loaders of one batch (full-batch training), ``shuffle=False`` (its iterators go on), a
    quick validation batch (the training has a loader of its own, or its forward gets other data),
    loaders that shuffle, one batch that is fetched once.

    Sources: discuss.pytorch.org/t/how-to-get-one-batch-from-a-dataloader/18971.
    """

    kind = "always_the_same_batch"
    in_a_row = True

    def __init__(self) -> None:
        self._iterator: Callable[[], Any] = lambda: None
        self._sampler: Callable[[], Any] = lambda: None
        self._first = torch.zeros(0)
        self._place: ScriptLine | None = None
        self._rounds = 0
        self._is_fed = self._has_updated = False

    def batch(self, seen: SeenSoFar, iterator: Any, batch: Any) -> Proof | None:
        sampler, values = iterator._index_sampler, first_tensor(batch)
        if not self._rounds:
            self.is_over = values is None or values.numel() > LARGE or not _has_more(sampler)
            if values is None or self.is_over:
                return None
            self._sampler, self._first = weakref.ref(sampler), values.detach().clone()
            self._place = script_place()
        elif (
            sampler is not self._sampler()
            or iterator is self._iterator()
            or not self._has_updated
            or values is None
            or not same(values, self._first)
        ):
            self.is_over = True
            return None
        self._rounds += 1
        self._iterator = weakref.ref(iterator)
        self._has_updated = self._is_fed = False
        return None

    def forward(self, seen: SeenSoFar, call: ForwardSeen) -> Proof | None:
        if self._rounds >= TIMES and call.with_graph and not self._is_fed:
            self._is_fed = is_fed(call.args, self._first)
        return None

    def updated(self, seen: SeenSoFar, optimizer: Optimizer, *, is_main: bool) -> Proof | None:
        self._has_updated = self._has_updated or is_main
        if self._rounds < TIMES or not self._is_fed:
            return None
        return Proof(
            fact=f"{TIMES} updates have seen one and the same batch: each takes the first batch of "
            "a new iterator, and the loader does not shuffle",
            where=self._place,
            mend="for batch in loader: ..., or iterator = iter(loader) once, before the loop",
        )


def _has_more(sampler: Any) -> bool:
    try:
        return len(sampler) > 1
    except TypeError:  # of an iterable data set
        return False
