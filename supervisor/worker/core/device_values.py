"""Numbers of a step that a device still computes: read all at once, when the first one is needed.

A read of a value that was only just queued waits until the device has done everything before it,
and then leaves it idle until the host has queued more. So a step reads once, before its update.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

READ_AT_ONCE = {"cpu", "meta", "mps"}
"""Kinds of devices that nobody waits for; MPS has no float64."""


class DeviceValues:
    """What waits to be read, by name.

    Attributes:
        waiting: name → value (one element, float64), and who takes it in.
    """

    def __init__(self) -> None:
        self.waiting: dict[str, tuple[torch.Tensor, Callable[[float], None]]] = {}

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

    def read(self) -> None:
        """Reads what waits: one wait for each device."""
        waiting, self.waiting = self.waiting, {}
        by_device: dict[torch.device, list[str]] = {}
        for name, (value, _) in waiting.items():
            by_device.setdefault(value.device, []).append(name)
        for names in by_device.values():
            numbers: list[float] = _TO_LIST(torch.stack([waiting[name][0] for name in names]))
            for name, number in zip(names, numbers, strict=True):
                waiting[name][1](number)


_TO_LIST = torch.Tensor.tolist  # before it is patched


def is_late(value: object) -> bool:
    """Whether a read of it would wait for a device: of a plain tensor's."""
    kinds = (torch.Tensor, torch.nn.Parameter)
    return type(value) in kinds and value.device.type not in READ_AT_ONCE  # type: ignore[attr-defined]
