"""A distributed sampler whose epoch is never set."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils.data.distributed import DistributedSampler

from supervisor.worker.mistakes.evidence.mistake import ForwardSeen, Mistake, Proof, SeenSoFar
from supervisor.worker.mistakes.evidence.places import names_in, script_place
from supervisor.worker.mistakes.evidence.tensors_within import (
    LARGE,
    first_tensor,
    is_fed,
    same,
    tensors,
)

FEW = 4


class RepeatedEpoch(Mistake):
    """No ``sampler.set_epoch(epoch)``: it shuffles, and each epoch has the order of the first.

    Proof: a `DistributedSampler` of torch's own that shuffles gave a whole pass, whose batches
    training forwards got; its epoch and seed are the same at the next pass, whose first batch has a
    tensor with the bits of the one in the first pass (its targets, where samples are augmented);
    no file of the script names ``set_epoch``.

    Spares: ``shuffle=False``, samplers of validation data, one epoch, a pass that was left early,
    data that are put in another order between the passes.

    Sources: pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler.
    """

    kind = "same_order_each_epoch"
    lasts = True

    def __init__(self) -> None:
        self._iterator: Callable[[], Any] = lambda: None
        self._sampler: DistributedSampler[Any] | None = None
        self._key: tuple[int, int] = (0, 0)
        self._first: list[torch.Tensor] = []
        self._latest: torch.Tensor | None = None
        self._left = self._fed = 0

    def batch(self, seen: SeenSoFar, iterator: Any, batch: Any) -> Proof | None:
        if iterator is self._iterator():
            self._left -= 1
            if self._fed < FEW:
                self._latest = first_tensor(batch)
            return None
        batches = iterator._index_sampler
        sampler = getattr(batches, "sampler", None)
        if type(sampler) is not DistributedSampler or not sampler.shuffle:
            return None
        is_fed_on = self._fed >= FEW
        if self._sampler is not None and sampler is not self._sampler and is_fed_on:
            return None  # of another loader, beside the training's
        is_again = sampler is self._sampler and is_fed_on and self._left == 0
        key, first = (sampler.epoch, sampler.seed), [_kept(each) for each in tensors(batch)]
        if is_again and key == self._key and any(map(_is_same_order, first, self._first)):
            return self._judge()
        self.is_over, self.follows_loaders = is_again, True
        self._iterator, self._sampler = weakref.ref(iterator), sampler
        self._key, self._first = key, first
        self._left, self._fed, self._latest = len(batches) - 1, 0, first_tensor(batch)
        return None

    def forward(self, seen: SeenSoFar, call: ForwardSeen) -> Proof | None:
        if call.with_graph and self._latest is not None:
            self._fed += is_fed(call.args, self._latest)
            self._latest = None
        return None

    def updated(self, seen: SeenSoFar, optimizer: Optimizer, *, is_main: bool) -> Proof | None:
        self.is_over = self._sampler is None and seen.updates >= FEW
        return None

    def _judge(self) -> Proof | None:
        self.is_over, place = True, script_place()
        if place is None or names_in(place, "set_epoch"):
            return None
        return Proof(
            fact="each epoch has the same order: the distributed sampler shuffles by its epoch, "
            f"which is still {self._key[0]} in the second pass",
            where=place,
            mend="sampler.set_epoch(epoch) at the start of each epoch",
        )


def _kept(each: torch.Tensor) -> torch.Tensor:
    return each.detach().flatten()[:LARGE].clone()


def _is_same_order(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.numel() >= FEW and bool((one != one[0]).any()) and same(one, other)
