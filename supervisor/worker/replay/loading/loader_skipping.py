"""Batches that a fast-forward need not load, because their indices prove which they are.

The live run notes, for every batch that a map-style loader fetches: a checksum of the indices, the
first values, the shapes, and what loading drew from the global random generators. The replay draws
the indices again, and hands out a copy of an earlier batch of the same shapes. What the script
reads from it comes off the tape, as for any tensor; `PlaceholderTracker` sees to the rest.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
import xxhash
from torch.utils import _pytree as pytree

from supervisor.errors import ReplayError
from supervisor.storage.steps.tape import EntryKind, TapeReader
from supervisor.training_state.draws import Generators, advance, between, look
from supervisor.worker.ground.interception_state import InterceptionState
from supervisor.worker.ground.step_probe import first_tensor
from supervisor.worker.recording.loading_proof import LoadingProof

NEAR_STEPS = 8
"""So many steps before the target everything is loaded: its batches may still be in use there,
prefetched by the script, where no variable leads to them."""
_HEAD_VALUES = 16
_FORMS: dict[Any, str] = {}
_MANY_FORMS = 1000
_SIZES = struct.Struct("<QI")
_EPOCH = struct.Struct("<q")


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
    def unpack(cls, data: bytes) -> FetchMark:
        indices, size = _SIZES.unpack_from(data)
        middle = _SIZES.size + size
        return cls(indices, data[_SIZES.size : middle], data[middle:].decode())


def pack_mark(indices: Any, batch: Any) -> bytes:
    """Returns the `FetchMark` of a batch as the tape keeps it."""
    first, form = first_tensor(batch), form_of(batch)
    head = b"" if first is None or not form else _head(first).numpy().tobytes()
    return _SIZES.pack(checksum(indices), len(head)) + head + form.encode()


class LoaderSkipping:
    """Answers fetches during a fast-forward.

    Args:
        tape: where the recorded run's fetches are.
        interception: what happens in here is not the script's.
        allowed: numbers of the data sets whose batches may be others; those of the rest are loaded
            and only compared.
        handed_out: called with every batch that stands for another.
    """

    def __init__(
        self,
        tape: TapeReader,
        interception: InterceptionState,
        *,
        allowed: Collection[int],
        handed_out: Callable[[Any], None],
    ) -> None:
        self._tape = tape
        self._interception = interception
        self._allowed = allowed
        self._handed_out = handed_out
        self._earlier: dict[str, Any] = {}
        self._early_epochs = _epochs_ended_early(tape) if allowed else set()

    def stand_in(self, proof: LoadingProof, indices: Any) -> Any:
        """Returns a batch of the recorded shapes instead of the one with these indices, and sets
        the random states behind it; None if it has to be loaded.

        Raises:
            ReplayError: the recorded run fetched something else here.
        """
        data = self._tape.find_next(EntryKind.BATCH)
        if not data or proof.number not in self._allowed:
            return None
        mark = FetchMark.unpack(data)
        earlier = self._earlier.get(mark.form)
        if earlier is None:
            return None
        while self._tape.peek() not in (EntryKind.BATCH, EntryKind.STEP, 0):
            self._tape.take(self._tape.peek())  # what was read while it was loaded
        self._compare(FetchMark.unpack(self._tape.take(EntryKind.BATCH)), indices)
        with self._interception.region():
            batch = _stand_in(earlier, mark)
            self._handed_out(batch)
            self._advance(self._drawn())
        return batch

    def loaded(
        self, proof: LoadingProof, indices: Any, batch: Any, earlier: Generators | None = None
    ) -> None:
        """Called behind a batch that was really loaded, with what the recorded run noted there.

        Args:
            earlier: the global random generators before it was loaded; None if it was loaded in
                other processes.

        Raises:
            ReplayError: the recorded run fetched something else here.
        """
        data = self._tape.take(EntryKind.BATCH)
        if data:
            mark = FetchMark.unpack(data)
            self._compare(mark, indices)
            if proof.number in self._allowed and mark.form and mark.form not in self._earlier:
                with self._interception.region():
                    if form_of(batch) == mark.form:
                        self._earlier[mark.form] = pytree.tree_map(torch.clone, batch)
        else:
            proof.is_given_up = True
        drawn = self._drawn()
        if data and earlier is not None:
            with self._interception.region():
                if between(earlier, look()) != drawn:
                    raise ReplayError("loading draws other random numbers than in the recorded run")

    def _drawn(self) -> bytes:
        """What the recorded run's loading drew, from the tape."""
        is_next = self._tape.peek() == EntryKind.DRAWN
        return self._tape.take(EntryKind.DRAWN) if is_next else b""

    def _advance(self, drawn: bytes) -> None:
        try:
            advance(drawn)
        except ValueError as error:
            raise ReplayError(str(error)) from error

    def _compare(self, mark: FetchMark, indices: Any) -> None:
        if mark.indices != checksum(indices):
            raise ReplayError("the loader asks for other samples than in the recorded run")

    def skips_epoch(self, number: int) -> bool:
        """Whether an epoch of loader workers ends early enough, with known shapes only."""
        if number not in self._early_epochs:
            return False
        for kind, data in self._tape.ahead():
            if kind == EntryKind.EPOCH_END and data == pack_epoch(number):
                return True
            if kind == EntryKind.BATCH and FetchMark.unpack(data).form not in self._earlier:
                return False
        return False

    def epoch_ended(self, number: int) -> None:
        """Raises ReplayError if the recorded run's epoch did not end here."""
        if self._tape.take(EntryKind.EPOCH_END) != pack_epoch(number):
            raise ReplayError("another data loader has come to its end")


def pack_epoch(number: int) -> bytes:
    """The number of an epoch of loader workers, as the tape keeps it."""
    return _EPOCH.pack(number)


def _epochs_ended_early(tape: TapeReader) -> set[int]:
    """The epochs of loader workers that ended more than `NEAR_STEPS` before the tape does."""
    steps = 0
    ended: dict[int, int] = {}
    for kind, data in tape.ahead():
        if kind == EntryKind.STEP:
            steps += 1
        elif kind == EntryKind.EPOCH_END:
            ended[_EPOCH.unpack(data)[0]] = steps
    return {number for number, step in ended.items() if steps - step > NEAR_STEPS}


def checksum(indices: Any) -> int:
    """The same number in every process for the same indices, of whatever type they are."""
    return xxhash.xxh3_64_intdigest(repr(indices).encode())


def form_of(batch: Any) -> str:
    """Returns structure, shapes and types of a batch; empty if a copy could not stand for it."""
    kind: Any = type(batch)
    leaves, structure = batch, kind
    if kind not in (list, tuple) or not all(type(leaf) is torch.Tensor for leaf in batch):
        leaves, structure = pytree.tree_flatten(batch)  # 20 us, saved for most batches
    if not leaves or not all(_is_plain(leaf) for leaf in leaves):
        return ""
    key = structure, *[(leaf.shape, leaf.dtype) for leaf in leaves]
    known = _FORMS.get(key)
    if known is None:
        shapes = [(tuple(leaf.shape), str(leaf.dtype)) for leaf in leaves]
        if len(_FORMS) > _MANY_FORMS:
            _FORMS.clear()
        known = _FORMS[key] = f"{structure} {shapes}"
    return known


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
