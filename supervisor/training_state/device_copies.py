"""Copies from devices to the host for which the host does not wait.

A side stream copies what the current stream has computed so far, and the current stream waits for
it at once: nothing can be written or freed meanwhile. Whoever reads the copy on the host waits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import torch

_SIDES: dict[int, Any] = {}
"""Device → the stream of our copies."""


def is_in_use() -> bool:
    """Whether a tensor can be on a device at all, asked once a copy."""
    return bool(torch.cuda.is_initialized())


def on_device(tensor: torch.Tensor) -> bool:
    """Whether its values are copied to the host without the host."""
    return tensor.is_cuda


class Copying:
    """Copies under way; each has an event before it and one after it on its device."""

    def __init__(self, spans: Iterable[tuple[Any, Any]] = ()) -> None:
        self._spans = tuple(spans)
        self._is_done = not self._spans

    def wait(self) -> None:
        """Returns when the host may read; a failure of the device surfaces here."""
        if not self._is_done:
            for _, after in self._spans:
                after.synchronize()
            self._is_done = True

    def device_s(self) -> float:
        """Waits, and returns how long the slowest device's training stood for it, in seconds."""
        self.wait()
        return max((before.elapsed_time(after) for before, after in self._spans), default=0) / 1e3


DONE = Copying()


class _Writes:
    """Attributes:
    devices: to which values are on their way; None where each write is waited for.
    """

    devices: set[int] | None = None


def write(target: torch.Tensor, saved: torch.Tensor) -> None:
    """Copies `saved` into `target`; within `written_together` its values may still be on their way
    to a device."""
    goes_up = _Writes.devices is not None and on_device(target) and not on_device(saved)
    if _Writes.devices is not None and goes_up:
        _Writes.devices.add(target.device.index or 0)
    target.copy_(saved, non_blocking=goes_up)


@contextlib.contextmanager
def written_together() -> Iterator[None]:
    """The host waits for what is written in here at the end, once a device; it must live, and not
    be changed, until then."""
    devices = _Writes.devices = set[int]()
    try:
        yield
    finally:
        _Writes.devices = None
        for device in devices:
            arrived = torch.cuda.Event()
            arrived.record(torch.cuda.current_stream(device))
            arrived.synchronize()


def copy_aside(
    targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor], devices: Collection[int]
) -> Copying:
    """Begins to copy; `sources` on the host are copied when it returns.

    Args:
        targets: on the host.
        sources: anywhere.
        devices: on which some of them are.
    """
    if not devices:
        if sources:
            _copy(targets, sources, non_blocking=False)
        return DONE
    spans = []
    with contextlib.ExitStack() as stack:
        for device in sorted(devices):
            if device not in _SIDES:
                _SIDES[device] = torch.cuda.Stream(device)
            side, before = _SIDES[device], torch.cuda.Event(enable_timing=True)
            own = torch.cuda.current_stream(device)
            before.record(own)
            side.wait_event(before)
            stack.enter_context(torch.cuda.stream(side))
            spans.append((own, side, before, torch.cuda.Event(enable_timing=True)))
        _copy(targets, sources, non_blocking=True)
    for own, side, _, after in spans:
        after.record(side)
        own.wait_event(after)
    return Copying((before, after) for _, _, before, after in spans)


def _copy(
    targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor], *, non_blocking: bool
) -> None:
    """In one call, which is faster for small tensors."""
    torch._foreach_copy_(list(targets), list(sources), non_blocking=non_blocking)
