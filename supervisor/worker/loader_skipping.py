"""Batches that a fast-forward need not load, because their indices prove which they are.

On only with `fast_forward.skip_loading`. The live run notes, for every batch that a loader fetches
in the training's own process: a checksum of the indices, the first values, the shapes, and the
random states behind it. The replay draws the indices again, and hands out a copy of an earlier
batch of the same shapes. What the script reads from it comes off the tape, as for any tensor.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import xxhash
from torch.utils import _pytree as pytree

from supervisor.errors import ReplayError
from supervisor.storage.tape import EntryKind, TapeReader
from supervisor.worker.recording import replay_random
from supervisor.worker.step_probe import first_tensor

NEAR_STEPS = 8
"""So many steps before the target everything is loaded: its batches may still be in use there,
prefetched by the script, where no variable leads to them."""
_HEAD_VALUES = 16
_SIZES = struct.Struct("<QI")


@dataclass(frozen=True, slots=True)
class FetchMark:
    """What the tape keeps of one batch that was fetched.

    Attributes:
        indices: checksum of the samples' indices.
        head: bytes of the first values of the batch's first tensor, as its signature takes them.
        form: shapes and types of all of it; empty if there is more in it than plain CPU tensors.
    """

    indices: int
    head: bytes
    form: str

    @classmethod
    def of(cls, indices: Any, batch: Any) -> FetchMark:
        first, form = first_tensor(batch), form_of(batch)
        head = b"" if first is None or not form else _head(first).numpy().tobytes()
        return cls(checksum(indices), head, form)

    def pack(self) -> bytes:
        return _SIZES.pack(self.indices, len(self.head)) + self.head + self.form.encode()

    @classmethod
    def unpack(cls, data: bytes) -> FetchMark:
        indices, size = _SIZES.unpack_from(data)
        middle = _SIZES.size + size
        return cls(indices, data[_SIZES.size : middle], data[middle:].decode())


class LoaderSkipping:
    """Answers fetches during a fast-forward.

    Args:
        tape: where the recorded run's fetches are.
        is_allowed: whether a batch may be another one; otherwise all are loaded and only compared.
    """

    def __init__(self, tape: TapeReader, *, is_allowed: bool) -> None:
        self._tape = tape
        self._is_allowed = is_allowed
        self._earlier: dict[str, Any] = {}

    def fetch(self, indices: Any, call: Callable[[], Any], *, steps_left: int) -> Any:
        """Returns a batch of the recorded shapes, and sets the random states behind it.

        Args:
            indices: what the sampler drew.
            call: loads the real batch.
            steps_left: steps until the fast-forward's target.

        Raises:
            ReplayError: the recorded run fetched something else here.
        """
        mark = FetchMark.unpack(self._tape.take(EntryKind.BATCH))
        if mark.indices != checksum(indices):
            raise ReplayError("the loader asks for other samples than in the recorded run")
        earlier = self._earlier.get(mark.form)
        if self._is_allowed and steps_left > NEAR_STEPS and earlier is not None:
            batch = _stand_in(earlier, mark)
        else:
            batch = call()
            if mark.form and earlier is None and form_of(batch) == mark.form:
                self._earlier[mark.form] = pytree.tree_map(torch.clone, batch)
        replay_random(self._tape)
        return batch


def checksum(indices: Any) -> int:
    """The same number in every process for the same indices, of whatever type they are."""
    return xxhash.xxh3_64_intdigest(repr(indices).encode())


def form_of(batch: Any) -> str:
    """Returns structure, shapes and types of a batch; empty if a copy could not stand for it."""
    leaves, structure = pytree.tree_flatten(batch)
    if not leaves or not all(_is_plain(leaf) for leaf in leaves):
        return ""
    return f"{structure} {[(tuple(leaf.shape), str(leaf.dtype)) for leaf in leaves]}"


def _is_plain(leaf: Any) -> bool:
    return (
        type(leaf) is torch.Tensor
        and leaf.device.type == "cpu"
        and leaf.layout == torch.strided
        and leaf.is_contiguous()
        and not leaf.requires_grad
    )


def _stand_in(earlier: Any, mark: FetchMark) -> Any:
    batch = pytree.tree_map(torch.clone, earlier)
    first = first_tensor(batch)
    if first is not None and mark.head:
        _head(first).copy_(torch.frombuffer(bytearray(mark.head), dtype=torch.uint8))
    return batch


def _head(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of the first values; shares memory with a contiguous tensor."""
    return tensor.reshape(-1)[:_HEAD_VALUES].view(torch.uint8)
