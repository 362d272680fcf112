"""Loaders that give the same again."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils.data import BatchSampler, IterableDataset, RandomSampler, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from supervisor.worker.mistakes.evidence.mistake import ForwardSeen, Mistake, Proof, SeenSoFar
from supervisor.worker.mistakes.evidence.places import ScriptLine, names_in, script_place
from supervisor.worker.mistakes.evidence.tensors_within import (
    LARGE,
    first_tensor,
    is_fed,
    same,
    tensors,
)

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


ROUNDS = 5


class WorkersDrawSame(Mistake):
    """Each worker has a copy of one generator, or reads the whole stream: all samples come twice.

    Proof: in the first five rounds of a loader's workers every worker gave the very batch, all
    tensors to the bit, that the first one gave, and each round another one than the round before.
    The indices of a map-style data set were different ones, as torch's own samplers give them.

    Spares: streams of which each worker reads its own slice, seeds by index or by worker
    (``worker_init_fn``, `get_worker_info`), samplers of the script's own and those that draw with
    replacement, data of which all batches are equal, batches without tensors.

    Sources: numpy/numpy#9248, pytorch/pytorch#5059,
    tanelp.github.io/posts/a-bug-that-plagues-thousands-of-open-source-ml-projects.
    """

    kind = "workers_draw_the_same"

    def __init__(self) -> None:
        self._iterator: Callable[[], Any] = lambda: None
        self._count = 0
        self._first: list[torch.Tensor] = []
        self._place: ScriptLine | None = None

    def batch(self, seen: SeenSoFar, iterator: Any, batch: Any) -> Proof | None:
        workers, given = iterator._num_workers, list(tensors(batch))
        if iterator is not self._iterator():
            if self._count or workers < 2 or not _are_different(iterator):
                self.is_over = bool(self._count)
                return None
            self._iterator, self._place = weakref.ref(iterator), script_place()
        place, self._count = self._count % workers, self._count + 1
        is_small = all(each.numel() <= LARGE for each in given)
        is_same = len(given) == len(self._first) and all(map(same, given, self._first))
        if not given or not is_small or is_same is (place == 0):
            self.is_over = True
        elif self._count >= ROUNDS * workers:
            return self._proof(iterator, workers)
        elif place == 0:
            self._first = [each.clone() for each in given]
        return None

    def _proof(self, iterator: Any, workers: int) -> Proof:
        is_stream = isinstance(iterator._dataset, IterableDataset)
        each, mend = "draws the same numbers", "seed by the index, or in a worker_init_fn"
        if is_stream:
            each = "reads the whole stream"
            mend = (
                "itertools.islice(stream, info.id, None, info.num_workers), with get_worker_info()"
            )
        return Proof(
            fact=f"all {workers} workers of a loader give the same samples: each {each}, so every "
            f"batch comes {workers} times",
            where=self._place,
            mend=mend,
        )


def _are_different(iterator: Any) -> bool:
    """Whether no two samples of a pass may be one."""
    if isinstance(iterator._dataset, IterableDataset):
        return True
    batches = iterator._index_sampler
    sampler = batches.sampler if type(batches) is BatchSampler else None
    return type(sampler) in (SequentialSampler, DistributedSampler) or (
        type(sampler) is RandomSampler and not sampler.replacement
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
