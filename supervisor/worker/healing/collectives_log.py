"""What one rank's collectives gave it, in memory that outlives the rank.

One writer, no pickle: each entry is copied into mapped memory, and counts once the number of used
bytes is stored after it. A process that is killed in between leaves those before.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import xxhash

from supervisor.storage.run.healing_memory import LOG_HEAD, LOG_MAGIC

_ENTRY = struct.Struct("<QQQ")
_USED_WORD = 2
_NOT_BEGUN = -1
_PAGE = 4096
_ALIGNED = 64
MOST_BYTES = 1 << 30
"""Of one log, unless less is given. The file is sparse and takes what is written to it."""
_NEARLY_FULL = 0.75
"""Then a state is kept, after which the log begins anew."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One collective or message.

    Attributes:
        signature: of the call: which operation, group and shapes.
        checksum: of what this rank gave.
        at, length: where what it got lies.
    """

    signature: int
    checksum: int
    at: int
    length: int


class CollectivesLog:
    """One mapped log.

    Attributes:
        step: of the state after which its entries come; -1 before it is begun.
        is_full: an entry had no room since; the log is of no use until it is begun again.
        limit: of its bytes, since it was begun.

    Raises:
        OSError: the memory is gone, or the user's limit for the size of files is too low.
    """

    def __init__(self, path: str, size: int = MOST_BYTES) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self.limit = os.fstat(descriptor).st_size or size
            os.ftruncate(descriptor, self.limit)
            self._memory = mmap.mmap(descriptor, self.limit)
        finally:
            os.close(descriptor)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        # A memoryview of "Q" stores all eight bytes at once.
        self._words = memoryview(self._memory).cast("Q")
        magic, step, self._used = LOG_HEAD.unpack_from(self._memory, 0)
        self.step = int(step) if magic == LOG_MAGIC else _NOT_BEGUN
        self.is_full = False
        if self.step == _NOT_BEGUN:
            self._used = _PAGE
        self._next = self._used

    @property
    def used(self) -> int:
        """In bytes."""
        return int(self._used)

    @property
    def is_nearly_full(self) -> bool:
        return bool(self._next > _NEARLY_FULL * self.limit)

    def start(self, step: int, limit: int = MOST_BYTES) -> None:
        """Forgets all entries: what comes now comes after the state of `step`, up to so many
        bytes."""
        LOG_HEAD.pack_into(self._memory, 0, 0, _NOT_BEGUN, _PAGE)
        self.step, self._used, self._next, self.is_full = step, _PAGE, _PAGE, False
        self.limit = min(limit, len(self._memory))
        LOG_HEAD.pack_into(self._memory, 0, LOG_MAGIC, step, self._used)

    def stop(self) -> None:
        """Nothing in it is of any use any more."""
        LOG_HEAD.pack_into(self._memory, 0, 0, _NOT_BEGUN, _PAGE)
        self.step = _NOT_BEGUN

    def reserve(self, signature: int, checksum: int, length: int) -> int | None:
        """Returns the address of room for the next entry, which counts from `commit` on; None
        without room. Other arguments: see `Entry`."""
        if self.is_full or self.step == _NOT_BEGUN:
            return None
        start = self._next + _ENTRY.size
        end = _aligned(start + length)
        if end > self.limit:
            self.is_full = True
            self.stop()
            return None
        _ENTRY.pack_into(self._memory, self._next, signature, checksum, length)
        self._next = end
        return int(self._address + start)

    def commit(self, address: int, length: int) -> None:
        """The entry of `reserve` is whole, and so are those before it."""
        if self.step != _NOT_BEGUN:
            self._words[_USED_WORD] = self._used = _aligned(address - self._address + length)

    def write(self, address: int, message: bytes) -> None:
        """Copies plain bytes to where `reserve` has made room for them."""
        at = address - self._address
        self._memory[at : at + len(message)] = message

    def entries(self) -> Iterator[Entry]:
        """Yields those that are there now, in their order."""
        at, end = _PAGE, self._used
        while at < end:
            signature, checksum, length = _ENTRY.unpack_from(self._memory, at)
            start = at + _ENTRY.size
            yield Entry(signature, checksum, start, length)
            at = _aligned(start + length)

    def read(self, entry: Entry) -> bytes:
        """Returns what a message of plain bytes held."""
        return bytes(self._memory[entry.at : entry.at + entry.length])

    def fill(self, entry: Entry, tensors: Sequence[torch.Tensor]) -> bool:
        """Writes what an entry holds into `tensors`; returns whether they have its size."""
        if sum(tensor.nbytes for tensor in tensors) != entry.length:
            return False
        copy_in(self._address + entry.at, tensors)
        return True


def copy_out(tensors: Sequence[torch.Tensor], address: int) -> None:
    """Copies the bytes of dense tensors of the processor, one after the other."""
    for tensor in tensors:
        dense = tensor if tensor.is_contiguous() else tensor.contiguous()
        size = dense.nbytes
        ctypes.memmove(address, dense.data_ptr(), size)
        address += size


def copy_in(address: int, tensors: Sequence[torch.Tensor]) -> None:
    """The other way round."""
    for tensor in tensors:
        size = tensor.nbytes
        if tensor.is_contiguous():
            ctypes.memmove(tensor.data_ptr(), address, size)
        else:
            dense = torch.empty_like(tensor, memory_format=torch.contiguous_format)
            ctypes.memmove(dense.data_ptr(), address, size)
            tensor.copy_(dense)
        address += size


def checksum_of(tensors: Sequence[torch.Tensor]) -> int:
    """Returns one number for the bytes of all of them."""
    state = 0
    for tensor in tensors:
        dense = tensor if tensor.is_contiguous() else tensor.contiguous()
        if size := dense.nbytes:
            data = (ctypes.c_char * size).from_address(dense.data_ptr())
            state = xxhash.xxh3_64_intdigest(data, seed=state)
    return state


def _aligned(at: int) -> int:
    return -(-at // _ALIGNED) * _ALIGNED
