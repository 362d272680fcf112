"""What the live run writes on its replay log of the values that the script reads, and back.

Whole tensors that the script reads as arrays or lists: logits of an evaluation, embeddings.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import xxhash

from supervisor.errors import ReplayError
from supervisor.storage.steps.replay_log import EntryKind, ReplayLogWriter
from supervisor.storage.steps.replay_log_reader import ReplayLogReader
from supervisor.training_state.tensors import bytes_of, local, outside_autograd
from supervisor.worker.random_state.random_states import RngRecorder

LARGEST = 1 << 23
"""Bytes of one read; a larger one is known by its checksum alone, because it is data more likely
than a result."""
_REMEMBERED = 20_000
"""Contents, the latest ones, that an entry may refer to: some MB. What an epoch reads of its data
comes again in the next one and is written once."""
_DIGEST_BYTES = 8


class LargeReads:
    """Writes what was read on the replay log, compressed; the same content once only.

    Args:
        replay log: of this attempt.
        budget: bytes, uncompressed, that are kept in one attempt.
        tell: called once, when something was left out.
    """

    def __init__(
        self, replay_log: ReplayLogWriter, budget: float, tell: Callable[[str], None]
    ) -> None:
        self._replay_log = replay_log
        self._left = budget
        self._tell = tell
        self._known: dict[bytes, bytes] = {}
        self._told = False

    def note(self, tensor: torch.Tensor) -> None:
        """Called when the script reads all of `tensor`, outside of regions."""
        data = _content(tensor)
        digest = xxhash.xxh3_64_digest(data)
        kept = b""
        if digest not in self._known:
            if data.nbytes <= min(self._left, LARGEST):
                kept = zlib.compress(data, level=1)
                self._left -= data.nbytes
                _remember(self._known, digest, b"")
            elif not self._told:
                self._told = True
                self._tell(
                    f"the script reads a tensor of {data.nbytes:,} bytes, which is not recorded "
                    "(fast_forward.reads_budget_mib): a later resume is exact only if it comes out "
                    "the same without the training"
                )
        self._replay_log.append(EntryKind.TENSOR, digest + kept)


class ReplayedReads:
    """Gives a replay the same content again."""

    def __init__(self, replay_log: ReplayLogReader) -> None:
        self._replay_log = replay_log
        self._known: dict[bytes, bytes] = {}
        replay_log.on_passed = self._remember

    def recorded(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Returns a tensor with what the recorded run read here; None if `tensor` holds just that.

        It is `tensor` itself, written in place, where that can be: arrays share its memory.

        Raises:
            ReplayError: nothing of the kind was read here, or its content was not recorded.
        """
        digest = self._remember(self._replay_log.take(EntryKind.TENSOR))
        if xxhash.xxh3_64_digest(_content(tensor)) == digest:
            return None
        if digest not in self._known:
            raise ReplayError(
                f"a tensor of shape {list(tensor.shape)} that the script reads has other values, "
                "and was too large to be recorded (fast_forward.reads_budget_mib)"
            )
        data = bytearray(zlib.decompress(self._known[digest]))
        shape = local(tensor).shape
        with outside_autograd():
            try:
                saved = torch.frombuffer(data, dtype=tensor.dtype).reshape(shape)
            except (RuntimeError, ValueError) as error:
                raise ReplayError(f"a tensor that is read has another shape: {error}") from error
            try:
                tensor.data.copy_(saved)
            except RuntimeError:  # its elements share their memory, or it was made for inference
                return saved.to(tensor.device)
        return tensor

    def _remember(self, entry: bytes) -> bytes:
        """Keeps the content of an entry, where it has one; returns its checksum."""
        digest, kept = entry[:_DIGEST_BYTES], entry[_DIGEST_BYTES:]
        if kept:
            _remember(self._known, digest, kept)
        return digest


def _remember(known: dict[bytes, bytes], digest: bytes, content: bytes) -> None:
    """Adds a content that is on the replay log; a writer, which begins anew in each attempt, never
    knows one that the reader of the whole replay log has forgotten."""
    known.pop(digest, None)
    known[digest] = content
    if len(known) > _REMEMBERED:
        del known[next(iter(known))]


def _content(tensor: torch.Tensor) -> memoryview:
    with outside_autograd():
        return bytes_of(tensor)


_FLOAT = struct.Struct("<d")
_INT = struct.Struct("<q")


def encode(kind: int, value: Any) -> bytes:
    """Returns a value that was read from a tensor as bytes, exactly."""
    if kind == EntryKind.FLOAT:
        return _FLOAT.pack(value)
    if kind == EntryKind.INT:
        return _INT.pack(value)
    if kind == EntryKind.BOOL:
        return b"\1" if value else b"\0"
    if isinstance(value, np.ndarray):
        head = json.dumps({"dtype": value.dtype.str, "shape": value.shape}).encode()
        return b"n" + _INT.pack(len(head)) + head + np.ascontiguousarray(value).tobytes()
    return b"j" + json.dumps(value).encode()  # Python's floats survive JSON exactly


def decode(kind: int, data: bytes) -> Any:
    """The inverse of `encode`."""
    if kind == EntryKind.FLOAT:
        return _FLOAT.unpack(data)[0]
    if kind == EntryKind.INT:
        return _INT.unpack(data)[0]
    if kind == EntryKind.BOOL:
        return data == b"\1"
    if data[:1] == b"n":
        size = _INT.unpack(data[1:9])[0]
        head = json.loads(data[9 : 9 + size])
        return np.frombuffer(data[9 + size :], dtype=head["dtype"]).reshape(head["shape"]).copy()
    return json.loads(data[1:])


class Recording:
    """The live side of the replay log."""

    def __init__(self, replay_log: ReplayLogWriter, large: LargeReads) -> None:
        self.replay_log = replay_log
        self.large = large
        self.random = RngRecorder(replay_log)

    def read(self, kind: int, call: Callable[[], Any]) -> Any:
        value = call()
        self.replay_log.append(kind, encode(kind, value))
        return value

    def note(self, kind: int, number: int) -> None:
        """Writes a whole number that the script does not read."""
        self.replay_log.append(kind, encode(EntryKind.INT, number))
