"""Batches that a fast-forward need not load, because their indices prove which they are.

The live run notes, for every batch that a map-style loader fetches: a checksum of the indices, the
first values, the shapes, and what loading drew from the global random generators. The replay draws
the indices again, and hands out a copy of an earlier batch of the same shapes. What the script
reads from it comes off the replay log, as for any tensor; `PlaceholderTracker` sees to the rest.

What a checkpoint holds of data sets.

Data that the script has computed with its model, features for a second training or labels: a replay
computes them with weights that are not trained. The checkpoint holds them, because variables lead
to them; so they come back as soon as a loader asks for them, and what it then gives is compared
with the recorded run like any other batch.

And what streams have told of where they stand.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import xxhash
from torch.utils import _pytree as pytree

from supervisor.errors import ReplayError
from supervisor.storage.steps.replay_log import EntryKind
from supervisor.storage.steps.replay_log_reader import ReplayLogReader
from supervisor.training_state.draws import Generators, advance, between, look
from supervisor.training_state.held_values import put_back, storages
from supervisor.training_state.script_state.reach import Reach
from supervisor.training_state.tensors import memory_of, storage_of
from supervisor.worker.core.call_state import CallState
from supervisor.worker.core.step_probe import first_tensor
from supervisor.worker.loading.loading_proof import LoadingProof
from supervisor.worker.script_state.user_frames import user_frames


class RecordedData:
    """Puts values of a checkpoint into a data set.

    Tensors alone: what the script takes out of them as arrays comes off the replay log.

    Args:
        saved: path → tensor or array, in its plain form.
        told: see `LoadingProofs.dataset_states`; kept as an attribute.
    """

    def __init__(self, saved: Mapping[str, Any], told: Mapping[str, str] | None = None) -> None:
        self._saved = saved
        self.told = told or {}

    def put_into(self, data: Any) -> bool:
        """Called during a replay, within a region; returns whether the data set had any of them."""
        own = storages(place.value for place in Reach({"data": {"set": data}}))
        frames = user_frames()
        inside = {
            place.path
            for place in Reach(frames)
            if place.path in self._saved and storage_of(place.value) in own
        }
        if not inside:
            return False
        return not put_back(frames, {path: self._saved[path] for path in inside})


NEAR_STEPS = 8
"""So many steps before the target everything is loaded: its batches may still be in use there,
prefetched by the script, where no variable leads to them."""
_HEAD_VALUES = 16
_FORMS: dict[Any, str] = {}
_MANY_FORMS = 1000
_SIZES = struct.Struct("<QI")


@dataclass(frozen=True, slots=True)
class FetchMark:
    """What the replay log keeps of one batch that was fetched.

    Attributes:
        indices: checksum of the samples' indices; of streams, which have none, of their contents.
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
    """Returns the `FetchMark` of a batch as the replay log keeps it."""
    first, form = first_tensor(batch), form_of(batch)
    head = b"" if first is None or not form else bytes(memory_of(_head(first)))
    return _SIZES.pack(checksum(indices), len(head)) + head + form.encode()


class LoaderSkipping:
    """Answers fetches during a fast-forward.

    Args:
        replay log: where the recorded run's fetches are.
        call_state: what happens in here is not the script's.
        allowed: numbers of the data sets whose batches may be others; those of the rest are loaded
            and only compared.
        shapes: of the batches that were really loaded.
        data: what the checkpoint holds of the script's data.
    """

    def __init__(
        self,
        replay_log: ReplayLogReader,
        call_state: CallState,
        *,
        allowed: Collection[int],
        shapes: KnownShapes,
        data: RecordedData,
    ) -> None:
        self._replay_log = replay_log
        self._call_state = call_state
        self._allowed = allowed
        self._shapes = shapes
        self._data = data

    def load_all(self) -> None:
        """From here on every batch is loaded."""
        self._allowed = ()

    def stand_in(self, proof: LoadingProof, indices: Any) -> Any:
        """Returns a batch of the recorded shapes instead of the one with these indices, and sets
        the random states behind it; None if it has to be loaded.

        Raises:
            ReplayError: the recorded run fetched something else here.
        """
        data = self._replay_log.find_next(EntryKind.BATCH)
        if not data or proof.number not in self._allowed:
            return None
        mark = FetchMark.unpack(data)
        if not self._shapes.has(mark):
            return None
        while self._replay_log.peek() not in (EntryKind.BATCH, EntryKind.STEP, 0):
            self._replay_log.take(self._replay_log.peek())  # what was read while it was loaded
        compare_indices(FetchMark.unpack(self._replay_log.take(EntryKind.BATCH)), indices)
        with self._call_state.region():
            batch = self._shapes.stand_in(mark)
            self._advance(self._drawn())
        return batch

    def load(
        self,
        proof: LoadingProof,
        indices: Any,
        call: Callable[[], Any],
        earlier: Generators,
    ) -> Any:
        """Returns what `call` loads; if that is not the recorded batch, what it loads once the
        data set is as the checkpoint has it: the script may have computed it with its model."""
        batch = proof.watch(indices, call)
        if not self._is_other(proof, batch):
            return batch
        with self._call_state.region():
            if between(earlier, look()) or not self._data.put_into(proof.data):
                return batch
        return call()

    def _is_other(self, proof: LoadingProof, batch: Any) -> bool:
        """Whether a batch does not begin as the recorded one."""
        data = None if proof.is_given_up else self._replay_log.find_next(EntryKind.BATCH)
        first = first_tensor(batch)
        if not data or first is None:
            return False
        mark = FetchMark.unpack(data)
        with self._call_state.region():
            is_same_form = bool(mark.head) and mark.form == form_of(batch)
            return is_same_form and mark.head != bytes(memory_of(_head(first)))

    def loaded(self, proof: LoadingProof, indices: Any, batch: Any, earlier: Generators) -> None:
        """Called behind a batch that was really loaded, with what the recorded run noted there.

        Args:
            earlier: the global random generators before it was loaded.

        Raises:
            ReplayError: the recorded run fetched something else here.
        """
        data = self._replay_log.take(EntryKind.BATCH)
        if data:
            mark = FetchMark.unpack(data)
            compare_indices(mark, indices)
            if proof.number in self._allowed:
                with self._call_state.region():
                    self._shapes.loaded(mark, batch)
        else:
            proof.is_given_up = True
        drawn = self._drawn()
        if data:
            with self._call_state.region():
                if between(earlier, look()) != drawn:
                    raise ReplayError("loading draws other random numbers than in the recorded run")

    def _drawn(self) -> bytes:
        """What the recorded run's loading drew, from the replay log."""
        is_next = self._replay_log.peek() == EntryKind.DRAWN
        return self._replay_log.take(EntryKind.DRAWN) if is_next else b""

    def _advance(self, drawn: bytes) -> None:
        try:
            advance(drawn)
        except ValueError as error:
            raise ReplayError(str(error)) from error


def compare_indices(mark: FetchMark, indices: Any) -> None:
    """Raises ReplayError if other samples are asked for than were recorded."""
    if mark.indices != checksum(indices):
        raise ReplayError("the loader asks for other samples than in the recorded run")


def checksum(indices: Any) -> int:
    """The same number in every process for the same indices, of whatever type they are."""
    return xxhash.xxh3_64_intdigest(repr(indices).encode())


def contents(batch: Any) -> list[int]:
    """Checksums of all that is in a batch of plain tensors; empty if there is more in it."""
    if not form_of(batch):
        return []
    return [xxhash.xxh3_64_intdigest(memory_of(leaf)) for leaf in pytree.tree_leaves(batch)]


def form_of(batch: Any) -> str:
    """Returns structure, shapes and types of a batch; empty if a copy could not stand for it."""
    kind: Any = type(batch)
    leaves, structure = batch, kind
    if kind not in (list, tuple) or not all(type(leaf) is torch.Tensor for leaf in batch):
        leaves, structure = pytree.tree_flatten(batch)  # 20 us, saved for most batches
        structure = str(structure)  # older versions of torch cannot hash it
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


class KnownShapes:
    """Batches that were really loaded, one of each form: copies of them stand for others.

    Args:
        handed_out: called with every batch that stands for another.
    """

    def __init__(self, handed_out: Callable[[Any], None]) -> None:
        self._handed_out = handed_out
        self._loaded: dict[str, Any] = {}

    def has(self, mark: FetchMark) -> bool:
        return mark.form in self._loaded

    def loaded(self, mark: FetchMark, batch: Any) -> None:
        """Called with each batch that was really loaded, within a region."""
        if mark.form and mark.form not in self._loaded and form_of(batch) == mark.form:
            self._loaded[mark.form] = pytree.tree_map(torch.clone, batch)

    def stand_in(self, mark: FetchMark) -> Any:
        """Returns a batch of this form with the recorded first values."""
        batch = pytree.tree_map(torch.clone, self._loaded[mark.form])
        first = first_tensor(batch)
        if first is not None and mark.head:
            _head(first).copy_(torch.frombuffer(bytearray(mark.head), dtype=torch.uint8))
        self._handed_out(batch)
        return batch


def _head(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of the first values; shares memory with a contiguous tensor."""
    return tensor.reshape(-1)[:_HEAD_VALUES].view(torch.uint8)
