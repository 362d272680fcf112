"""What one rank's collectives gave it, in memory that outlives the rank.

One writer, no thread, no pickle: each entry is copied into mapped memory, and counts once the
number of used bytes is stored after it. A process that is killed in between leaves those before.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import xxhash

from supervisor.storage.run.healing_memory import LOG_HEAD, LOG_MAGIC

_ENTRY = struct.Struct("<QQQQ")
_USED_WORD = 2
_NOT_BEGUN = -1
_PAGE = 4096
_ALIGNED = 64
_READ = 0x100
_memory_at: Any = ctypes.pythonapi.PyMemoryView_FromMemory
_memory_at.restype = ctypes.py_object
_memory_at.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)
MOST_BYTES = 1 << 30
"""Of one log, unless less is given. The file is sparse and takes what is written to it."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One collective or message.

    Attributes:
        signature: of the call: which operation, group and shapes.
        number: of the collective within its group.
        checksum: of what this rank gave.
        at, length: where what it keeps lies.
    """

    signature: int
    number: int
    checksum: int
    at: int
    length: int


class CollectivesLog:
    """One mapped log.

    Attributes:
        step: of the state after which its entries come; -1 before it is begun.
        is_full: an entry had no room since; the log is of no use until it is begun again.

    Raises:
        OSError: the memory is gone, or the user's limit for the size of files is too low.
    """

    def __init__(self, path: str, size: int = MOST_BYTES) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            size = os.fstat(descriptor).st_size or size
            os.ftruncate(descriptor, size)
            self._memory = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._bytes = memoryview(self._memory)
        self._words = self._bytes.cast("Q")  # which stores all eight bytes at once
        self._used: int
        magic, step, self._used = LOG_HEAD.unpack_from(self._memory, 0)
        self.step = int(step) if magic == LOG_MAGIC else _NOT_BEGUN
        self.is_full = False
        self._end = size
        if self.step == _NOT_BEGUN:
            self._used = _PAGE

    @property
    def used(self) -> int:
        """In bytes."""
        return self._used

    @property
    def is_half_full(self) -> bool:
        return self._used > self._end // 2

    def start(self, step: int, most_bytes: int = MOST_BYTES) -> None:
        """Forgets all entries: what comes now comes after the state of `step`.

        Args:
            most_bytes: of entries from now on; their pages are used again and again.
        """
        self._end = min(len(self._memory), _PAGE + most_bytes)
        LOG_HEAD.pack_into(self._memory, 0, 0, _NOT_BEGUN, _PAGE)
        self.step, self._used, self.is_full = step, _PAGE, False
        LOG_HEAD.pack_into(self._memory, 0, LOG_MAGIC, step, self._used)

    def stop(self) -> None:
        """Nothing in it is of any use any more."""
        LOG_HEAD.pack_into(self._memory, 0, 0, _NOT_BEGUN, _PAGE)
        self.step = _NOT_BEGUN

    def append(
        self,
        signature: int,
        number: int,
        checksum: int,
        tensors: Sequence[torch.Tensor],
        part: int = 0,
        of: int = 1,
    ) -> bool:
        """Copies an entry; returns whether it had room.

        Args:
            signature, number, checksum: see `Entry`.
            tensors: dense ones of the processor.
            part, of: which part of their bytes is kept, of how many.
        """
        size = sum(tensor.nbytes for tensor in tensors)
        first, end = size * part // of, size * (part + 1) // of
        start = self._room(end - first)
        if start is None:
            return False
        at = 0
        for tensor in tensors:
            begin, stop = max(first, at), min(end, at + tensor.nbytes)
            if begin < stop:
                held = tensor.contiguous()
                to, source = self._address + start + begin - first, held.data_ptr() + begin - at
                ctypes.memmove(to, source, stop - begin)
            at += tensor.nbytes
        self._has(signature, number, checksum, end - first)
        return True

    def append_message(self, kind: int, message: bytes) -> None:
        """The same with plain bytes; `kind` is its signature."""
        start = self._room(len(message))
        if start is not None:
            self._memory[start : start + len(message)] = message
            self._has(kind, 0, 0, len(message))

    def _room(self, size: int) -> int | None:
        start = self._used + _ENTRY.size
        if self.step != _NOT_BEGUN and start + size > self._end:
            self.is_full = True
            self.stop()
        return None if self.step == _NOT_BEGUN else start

    def _has(self, signature: int, number: int, checksum: int, size: int) -> None:
        _ENTRY.pack_into(self._memory, self._used, signature, number, checksum, size)
        self._count(_aligned(self._used + _ENTRY.size + size))

    def cut(self, entry: Entry) -> None:
        """Forgets this entry and those after it."""
        self._count(entry.at - _ENTRY.size)

    def _count(self, used: int) -> None:
        self._used = used
        self._words[_USED_WORD] = used

    def entries(self) -> Iterator[Entry]:
        """Yields those that are there now, in their order."""
        at, end = _PAGE, self._used
        while at < end:
            signature, number, checksum, length = _ENTRY.unpack_from(self._memory, at)
            start = at + _ENTRY.size
            yield Entry(signature, number, checksum, start, length)
            at = _aligned(start + length)

    def bytes_of(self, entry: Entry) -> memoryview:
        """Returns what an entry holds; the log's own memory."""
        return self._bytes[entry.at : entry.at + entry.length]


@torch.no_grad()
def fill_from_bytes(tensors: Sequence[torch.Tensor], data: bytes | memoryview) -> bool:
    """Writes these bytes into `tensors`; returns whether they have their size."""
    if sum(tensor.nbytes for tensor in tensors) != len(data):
        return False
    at = 0
    for tensor in tensors:
        if tensor.nbytes:
            held = bytearray(data[at : at + tensor.nbytes])
            tensor.copy_(torch.frombuffer(held, dtype=tensor.dtype).view(tensor.shape))
        at += tensor.nbytes
    return True


def checksum_of(tensors: Sequence[torch.Tensor]) -> int:
    """Returns one number for the bytes of all of them."""
    state = 0
    for tensor in tensors:
        if tensor.nbytes:
            held = tensor.contiguous()
            state = xxhash.xxh3_64_intdigest(_memory_at(held.data_ptr(), held.nbytes, _READ), state)
    return state


def _aligned(at: int) -> int:
    return -(-at // _ALIGNED) * _ALIGNED
