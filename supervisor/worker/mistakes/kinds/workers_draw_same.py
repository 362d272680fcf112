"""Loader workers that draw the same."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import BatchSampler, IterableDataset, RandomSampler, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from supervisor.worker.mistakes.evidence.mistake import Mistake, Proof, SeenSoFar
from supervisor.worker.mistakes.evidence.places import ScriptLine, script_place
from supervisor.worker.mistakes.evidence.tensors_within import LARGE, same, tensors

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
