"""A state in memory that outlives this process, because another one owns it."""

from __future__ import annotations

import io
import mmap
import os
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import torch
import xxhash

from supervisor.errors import CheckpointDamaged
from supervisor.storage.run.kept_memory import HEAD_BYTES, Head, read_head, write_head
from supervisor.training_state.snapshot import copy_state, state_bytes

_ALIGNED = 64
_SMALLEST = 1 << 20
_PAGE = mmap.ALLOCATIONGRANULARITY


class SharedMemoryState:
    """One place of `KeptMemory`, as the rank sees it that copies its states there.

    Its tensors are used again for the next state; what is no tensor is written anew each time.

    Raises:
        OSError: it cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._begin()

    def _begin(self) -> None:
        os.ftruncate(self._file, 0)
        os.ftruncate(self._file, HEAD_BYTES)
        self._end = HEAD_BYTES
        self._tree: dict[str, Any] | None = None
        self._found: dict[int, tuple[torch.Tensor, int]] = {}
        self._region: mmap.mmap | None = None
        self._region_at = self._used = 0
        self._text: mmap.mmap | None = None
        self._text_at = 0
        self._room = 0
        self._has_grown = self._is_worn = False

    def put(self, step: int, content: Mapping[str, Any]) -> None:
        """Copies a state into this place, instead of what was there.

        Args:
            step: at whose boundary it was taken.
            content: its key ``state`` is of `TrainingState.capture`, live; the rest is plain.

        Raises:
            OSError: there is no more memory; the place holds nothing then.
        """
        write_head(self._file, None)
        if self._is_worn:
            self._begin()
        self._room = max(_SMALLEST, state_bytes(content["state"])) if self._tree is None else 0
        state = self._tree = copy_state(content["state"], self._tree, self._allocate)
        text = io.BytesIO()
        _Writer(text, self._found).dump({**content, "state": state})
        data = text.getbuffer()
        self._write_text(data)
        checksum = xxhash.xxh3_64_intdigest(data)
        write_head(
            self._file, Head(step=step, at=self._text_at, length=len(data), checksum=checksum)
        )
        if self._has_grown:  # tensors that change their shapes leave holes
            self._has_grown = False
            self._is_worn = self._end > 2 * state_bytes(state) + 64 * _SMALLEST

    def empty(self) -> None:
        """The place holds nothing, and takes no memory any more."""
        self._begin()

    def forget(self) -> None:
        """The place holds nothing any more."""
        write_head(self._file, None)

    def _allocate(self, like: torch.Tensor) -> torch.Tensor | None:
        """Returns memory of this place for a copy; None for what is to be described in the text."""
        size = like.numel() * like.element_size()
        if not size or like.layout != torch.strided or like.is_quantized:
            return None
        at = -(-self._used // _ALIGNED) * _ALIGNED
        if self._region is None or at + size > len(self._region):
            self._region, self._region_at = self._grow(max(size, self._room, _SMALLEST))
            self._room, at = 0, 0
        found = torch.frombuffer(self._region, dtype=like.dtype, count=like.numel(), offset=at)
        found = found.view(like.shape)
        self._used = at + size
        self._found[id(found)] = (found, self._region_at + at)
        return found

    def _write_text(self, data: memoryview) -> None:
        if self._text is None or len(data) > len(self._text):
            self._text, self._text_at = self._grow(2 * len(data))
        self._text[: len(data)] = data

    def _grow(self, size: int) -> tuple[mmap.mmap, int]:
        """Adds memory to the end of the place; returns it, and where it begins."""
        size += size // 16  # for gaps between tensors
        size = -(-size // _PAGE) * _PAGE
        at = self._end
        self._has_grown = at > HEAD_BYTES
        os.ftruncate(self._file, at + size)
        self._end = at + size
        return mmap.mmap(self._file, size, offset=at), at


def read_place(path: str) -> tuple[int, dict[str, Any]] | None:
    """Returns the step and content of what `SharedMemoryState.put` left; None if it left nothing
    whole.

    Its tensors are in the memory of the place, for as long as they live.

    Raises:
        CheckpointDamaged: it is not what was put there.
        OSError: the memory is gone.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        head = read_head(descriptor)
        if head is None:
            return None
        memory = mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY)
    finally:
        os.close(descriptor)
    text = memoryview(memory)[head.at : head.at + head.length]
    if xxhash.xxh3_64_intdigest(text) != head.checksum:
        raise CheckpointDamaged(f"step {head.step}: what was kept in memory has changed")
    content: dict[str, Any] = _Reader(io.BytesIO(text), memory).load()
    return head.step, content


def _in_place(at: int, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Stands in the text for a tensor that is in the place; `_Reader` knows which place that is."""
    raise NotImplementedError


class _Writer(pickle.Pickler):
    def __init__(self, file: io.BytesIO, found: Mapping[int, tuple[torch.Tensor, int]]) -> None:
        super().__init__(file, protocol=5)
        self._found = found

    def reducer_override(self, value: Any) -> Any:
        """Asked for what is not plain only."""
        known = self._found.get(id(value)) if type(value) is torch.Tensor else None
        if known is None:
            return NotImplemented
        return _in_place, (known[1], value.dtype, tuple(value.shape))


class _Reader(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, memory: mmap.mmap) -> None:
        super().__init__(file)
        self._memory = memory

    def find_class(self, module: str, name: str) -> Any:
        found: Callable[..., Any] = super().find_class(module, name)
        return self._tensor if found is _in_place else found

    def _tensor(self, at: int, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
        count = 1
        for size in shape:
            count *= size
        return torch.frombuffer(self._memory, dtype=dtype, count=count, offset=at).view(shape)
