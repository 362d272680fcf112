"""Memory on the host for copies of the state, made once and in large slabs.

Memory that is new costs its first use: the system maps its pages, and pins those for copies from a
device, on an H100 1.1 s for each GiB. So a thread makes what the copies of a training will need
once its state is known, a slab at a time, and copies take their tensors out of it.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from supervisor.training_state import device_copies

LARGEST = 64 << 20
"""Bytes of a slab, but for tensors that are larger: pinning one holds launches up for 70 ms."""
ALIGNED = 64
SMALL = 1 << 16
"""Bytes of a tensor that is left to the heap, if it is not to be pinned."""
AHEAD = 16 << 20
"""Bytes of a state from which on its memory is worth a thread."""
PAUSES = 19.0
"""Times what a slab took, before the next one is made: a twentieth of the time."""
_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}


def slab_size(size: int, left: int, *, is_pinned: bool) -> int:
    """Returns the bytes of a new slab for `size` of the `left` bytes to come. Pinned ones are
    powers of two, because torch rounds them up."""
    if not is_pinned:
        return max(size, min(LARGEST, left))
    return max(1 << (size - 1).bit_length(), min(LARGEST, 1 << (max(left, 1).bit_length() - 1)))


def _bytes(tensor: torch.Tensor) -> int:
    return -(-tensor.numel() * tensor.element_size() // ALIGNED) * ALIGNED


class Layout:
    """Where in slabs tensors lie; what is left of a slab goes to smaller ones.

    Args:
        left: bytes to come, by whether they are to be pinned.

    Attributes:
        slabs: bytes of each, and whether it is to be pinned.
    """

    def __init__(self, left: Mapping[bool, int]) -> None:
        self.slabs: list[tuple[int, bool]] = []
        self._left = dict(left)
        self._open: dict[int, int] = {}  # number of a slab → bytes that are taken

    def place(self, size: int, is_pinned: bool) -> tuple[int, int]:
        """Returns the number of a slab, and where in it `size` bytes begin."""
        for number, begin in self._open.items():
            room, kind = self.slabs[number]
            if kind is is_pinned and begin + size <= room:
                break
        else:
            number, begin = len(self.slabs), 0
            room = slab_size(size, self._left[is_pinned], is_pinned=is_pinned)
            self.slabs.append((room, is_pinned))
        self._left[is_pinned] -= size
        self._open[number] = begin + size
        if begin + size == room:
            del self._open[number]
        return number, begin


class Arena:
    """The memory of one copy.

    Args:
        memory: makes slabs.
        tensors: of which copies will be asked for; others may be, too.
    """

    def __init__(self, memory: HostMemory, tensors: Iterable[torch.Tensor] = ()) -> None:
        self._memory = memory
        self._layout = Layout(memory.needed(tensors))
        self._slabs: list[Any] = []

    def like(self, source: torch.Tensor) -> torch.Tensor:
        """Returns memory for a copy of `source`, of its shape, type and order."""
        size, is_pinned = self._memory.placed(source)
        if not size:
            return torch.empty_like(source, device="cpu")
        number, begin = self._layout.place(size, is_pinned)
        if number == len(self._slabs):
            self._slabs.append(self._memory.slab(*self._layout.slabs[number]))
        stride = source.stride()
        if not source.is_contiguous():
            stride = torch.empty_like(source, device="meta").stride()
        # A storage of its own: whoever asks what else lies in it finds nothing.
        part = self._slabs[number][begin : begin + source.numel() * source.element_size()]
        found: Any = torch.empty(0, dtype=source.dtype, device="cpu")
        return found.set_(part, 0, source.shape, stride)  # type: ignore[no-any-return]


class HostMemory:
    """Makes slabs: pinned for what is on a device, until the system refuses that once.

    Attributes:
        rounding: bytes of slabs for each byte of a state.
    """

    def __init__(self) -> None:
        self.rounding = 1.0
        self._refused = ""
        self._is_told = False
        self._ready: list[tuple[Any, bool]] = []
        self._wanted: list[tuple[int, bool]] = []
        self._slabs = 0  # of one copy

    def pins(self, source: torch.Tensor) -> bool:
        """Whether the copy of `source` is to be pinned."""
        return not self._refused and device_copies.on_device(source) and not source.is_sparse

    def placed(self, source: torch.Tensor) -> tuple[int, bool]:
        """Bytes that the copy of `source` takes of a slab, or 0: it is left to the heap; and
        whether it is to be pinned."""
        is_pinned, size = self.pins(source), _bytes(source)
        is_small = not is_pinned and size < SMALL
        return 0 if is_small or source.layout != torch.strided else size, is_pinned

    def needed(self, tensors: Iterable[torch.Tensor]) -> dict[bool, int]:
        """Bytes for copies of them, by whether they are to be pinned."""
        found = {True: 0, False: 0}
        for tensor in tensors:
            found[self.pins(tensor)] += _bytes(tensor)
        return found

    @property
    def is_making(self) -> bool:
        """Whether more is to be made, and what there is does not do for a copy."""
        return bool(self._wanted) and len(self._ready) < self._slabs

    def make_ahead(self, tensors: list[torch.Tensor], copies: int) -> bool:
        """Begins to make the memory of so many copies of `tensors`; returns whether it is worth
        that."""
        needed = self.needed(tensors)
        layout, size = Layout(needed), sum(needed.values())
        if self.is_making or not copies or size < AHEAD:
            return False
        for tensor in tensors:
            placed, is_pinned = self.placed(tensor)
            if placed:
                layout.place(placed, is_pinned)
        self.rounding = max(1.0, sum(slab for slab, _ in layout.slabs) / size)
        self._wanted, self._slabs = layout.slabs * copies, len(layout.slabs)
        threading.Thread(target=self._make, name="supervisor-memory", daemon=True).start()
        return True

    def give_back(self) -> None:
        """What was made and not used yet is freed, and no more is made."""
        self._wanted, self._ready = [], []

    def slab(self, size: int, is_pinned: bool) -> Any:
        """Returns a storage of `size` bytes, or up to twice as many where one was made ahead."""
        for number, (slab, kind) in enumerate(self._ready):
            if kind is is_pinned and size <= slab.nbytes() <= 2 * size:
                del self._ready[number]
                return slab
        return self._new(size, is_pinned)

    def news(self) -> str:
        """Returns a sentence the first time that pinned memory was refused; else nothing."""
        if not self._refused or self._is_told:
            return ""
        self._is_told = True
        told = "no pinned memory for copies of the state, so they take longer"
        return f"{told}: {self._refused}"

    def _new(self, size: int, is_pinned: bool) -> Any:
        if is_pinned and not self._refused:
            try:
                return _memory(size, pin_memory=True)
            except RuntimeError as error:
                self._refused = str(error).splitlines()[0]
        return _memory(size)

    def _make(self) -> None:
        """In the thread; after an error copies make their memory themselves."""
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _FAULTS)
        while wanted := self._wanted:
            began = time.perf_counter()
            try:
                slab = self._new(*wanted[0])
                slab.fill_(0)  # pages are mapped by their first use
            except RuntimeError:  # there is no memory
                slab = None
                wanted.clear()
            if slab is not None and wanted is self._wanted:
                self._ready.append((slab, wanted[0][1] and not self._refused))
            del slab, wanted[:1]
            if wanted:
                time.sleep(PAUSES * (time.perf_counter() - began))


def _memory(size: int, **how: Any) -> Any:
    return torch.empty(size, dtype=torch.uint8, device="cpu", **how).untyped_storage()


HOST_MEMORY = HostMemory()
