"""Numbers of a step that a device still computes: read all at once, or one step later.

A read of a value that was only just queued waits until the device has done everything before it,
and then leaves it idle until the host has queued more. So a step reads once, before its update
(`DeviceValues`), or its numbers are copied to the host while the training goes on, and taken in
before the next update (`LateRow`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

READ_AT_ONCE = {"cpu", "meta", "mps"}
"""Kinds of devices that nobody waits for; MPS has no float64."""


@dataclass(slots=True)
class ReadCounts:
    """What this process has read from devices.

    Attributes:
        waits: reads of numbers of the step under way: they empty the device's queue.
        holds: reads of older numbers before they were here: the host runs less far ahead.
        may_wait: False in tests: a read that waits raises.
    """

    waits: int = 0
    holds: int = 0
    may_wait: bool = True

    def waited(self) -> None:
        self.waits += 1
        if not self.may_wait:
            raise AssertionError("a number of the step under way was read from its device")


READS = ReadCounts()


def treat_cpu_as_device(is_one: bool) -> None:
    """Has the CPU's tensors count as those of a device that answers one step later."""
    (READ_AT_ONCE.discard if is_one else READ_AT_ONCE.add)("cpu")


class LateRow:
    """Numbers on their way from one device to the host: one copy, one event.

    Args:
        values: of one element, float64, all on one device.
        is_behind_a_read: the script is about to read from the device itself: these numbers are here
            when it has.
    """

    __slots__ = ("_event", "_host", "_is_here", "_is_older")

    def __init__(self, values: Sequence[torch.Tensor], *, is_behind_a_read: bool = False) -> None:
        self._is_here, self._is_older = is_behind_a_read, False
        with torch._C.DisableTorchFunction():  # a mode of the script sees nothing of ours
            row = torch.stack(list(values))
            if row.device.type == "cpu":
                self._host, self._event = row, None
                return
            self._host = _host_row(len(row))
            self._host.copy_(row, non_blocking=True)  # in the stream of the training: in its order
            self._event = torch.Event(row.device)
            self._event.record()

    def becomes_older(self) -> None:
        """The next step has come to its update."""
        self._is_older = True

    def read(self) -> list[float]:
        """Returns the numbers; waits until they are here."""
        event = self._event
        if not (self._is_here if event is None else event.query()):
            if self._is_older:
                READS.holds += 1
            else:
                READS.waited()
            if event is not None:
                event.synchronize()
        numbers: list[float] = _TO_LIST(self._host)
        return numbers


def _host_row(length: int) -> torch.Tensor:
    """Pinned, so that the copy does not wait; torch keeps such memory and gives it out again."""
    try:
        return torch.empty(length, dtype=torch.float64, device="cpu", pin_memory=_PINS[0])
    except RuntimeError:
        _PINS[0] = False
        return torch.empty(length, dtype=torch.float64, device="cpu")


_PINS = [True]


def is_memory_pinned() -> bool:
    """Whether rows are copied to pinned memory; else each copy waits for its device."""
    return _PINS[0]


class DeviceValues:
    """What waits to be read, by name.

    Attributes:
        waiting: name → value (one element, float64), and who takes it in.
        sent: the same of what is on its way.
    """

    def __init__(self) -> None:
        self.waiting: dict[str, tuple[torch.Tensor, Callable[[float], None]]] = {}
        self.sent: dict[str, Callable[[float], None]] = {}
        self._row: LateRow | None = None

    def put(
        self, name: str, value: torch.Tensor, take: Callable[[float], None], *, add: bool = False
    ) -> None:
        """Has `take` called with the value when all are read.

        Args:
            value: of one element; what the script does to it later changes nothing.
            add: to what waits under this name; else it comes in its place.
        """
        earlier = self.waiting.get(name) if add else None
        with torch._C.DisableTorchFunction():  # a mode of the script sees nothing of ours
            number = value.detach().to(torch.float64, copy=True).reshape(())
            if earlier is not None:
                number = earlier[0] + number.to(earlier[0].device)
        self.waiting[name] = number, take

    def send(self) -> None:
        """Copies what waits to the host, right before the script reads from the device itself."""
        if len({value.device for value, _ in self.waiting.values()}) == 1:
            waiting, self.waiting = self.waiting, {}
            self.sent = {name: take for name, (_, take) in waiting.items()}
            values = [value for value, _ in waiting.values()]
            self._row = LateRow(values, is_behind_a_read=True)

    def forget(self) -> None:
        self.waiting, self.sent, self._row = {}, {}, None

    def read(self) -> None:
        """Reads what waits: one wait for each device."""
        row, sent = self._row, self.sent
        waiting = self.waiting
        self.forget()
        if row is not None:
            for take, number in zip(sent.values(), row.read(), strict=True):
                take(number)
        by_device: dict[torch.device, list[str]] = {}
        for name, (value, _) in waiting.items():
            by_device.setdefault(value.device, []).append(name)
        for names in by_device.values():
            READS.waited()
            numbers: list[float] = _TO_LIST(torch.stack([waiting[name][0] for name in names]))
            for name, number in zip(names, numbers, strict=True):
                waiting[name][1](number)


_TO_LIST = torch.Tensor.tolist  # before it is patched
_PLAIN = (torch.Tensor, torch.nn.Parameter)


def is_late(value: object) -> bool:
    """Whether a read of it would wait for a device: of a plain tensor's."""
    return type(value) in _PLAIN and value.device.type not in READ_AT_ONCE  # type: ignore[attr-defined]
