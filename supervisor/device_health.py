"""What NVML tells of the devices of this machine. It is only read; nothing is ever set.

NVML comes by nvidia-ml-py (extra ``gpu``). What a driver, a container or MIG refuses is None.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

HARDWARE_XIDS = {
    48: "a double-bit memory error",
    63: "a failing memory row was marked for remapping",
    64: "a failing memory row could not be remapped",
    74: "an NVLink error",
    79: "the device has fallen off the bus",
    92: "many single-bit memory errors",
    94: "a contained memory error",
    95: "an uncontained memory error",
    140: "an unrecovered memory error",
}
"""Those that NVIDIA's catalogue lays to the hardware alone. Others, such as 13, 31, 43 and 45, come
from programs or drivers as well and prove nothing."""

_SLOWED = {
    0x08: "hardware slowdown",
    0x20: "too hot (software)",
    0x40: "too hot (hardware)",
    0x80: "power brake",
}
"""Reasons for lower clocks that are no choice of a user's: nvmlClocksEventReason..."""


class NvmlMissing(Exception):
    """NVML cannot be used; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReading:
    """One look at one device.

    Attributes:
        index: in the order of the PCI bus.
        serial: of the board; empty where it is not told.
        memory_errors: uncorrected ECC errors since the driver was loaded.
        remapped_rows: memory rows that were replaced after such errors, in the device's life.
        remap_failed: no row is left to replace another.
        slowed: why its clocks are lowered, if not by a user.
        is_lost: NVML says that it cannot be reached any more.
    """

    index: int
    name: str
    uuid: str
    serial: str = ""
    memory_errors: int | None = None
    remapped_rows: int | None = None
    remap_failed: bool | None = None
    slowed: tuple[str, ...] = ()
    temperature_c: int | None = None
    is_lost: bool = False

    @property
    def title(self) -> str:
        """Tells it from all others."""
        return f"{self.name} ({f'serial {self.serial}' if self.serial else self.uuid})"

    def faults(self) -> list[str]:
        """What is wrong with it whatever it was before."""
        found = ["NVML cannot reach it any more"] if self.is_lost else []
        return found + (["no memory row is left to remap"] if self.remap_failed else [])

    def faults_since(self, before: DeviceReading | None, xids: Iterable[int]) -> list[str]:
        """What its hardware has failed at since `before`, with the Xids of that time."""
        found = [f"Xid {x}: {HARDWARE_XIDS[x]}" for x in dict.fromkeys(xids) if x in HARDWARE_XIDS]
        if before is None:
            return found
        found += [fault for fault in self.faults() if fault not in before.faults()]
        for name, words in (
            ("memory_errors", "uncorrected memory errors (ECC)"),
            ("remapped_rows", "memory rows remapped"),
        ):
            old, new = getattr(before, name), getattr(self, name)
            if old is not None and new is not None and new > old:
                found.append(f"{new - old} more {words}")
        return found


def has_devices() -> bool:
    """Whether the driver shows a device of NVIDIA's here."""
    return any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/dxg").exists()


class Nvml:
    """The devices that NVML sees, and their Xids from now on.

    Raises:
        NvmlMissing: it is not installed, finds no driver, or may not be used.
    """

    def __init__(self) -> None:
        try:
            import pynvml
        except ImportError as error:
            how = "pip install 'training-supervisor[gpu]'"
            raise NvmlMissing(f"nvidia-ml-py is not installed ({how})") from error
        self._nvml: Any = pynvml
        try:
            pynvml.nvmlInit()
            handles = [
                pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())
            ]
            self._devices = [(handle, self._named(i, handle)) for i, handle in enumerate(handles)]
        except pynvml.NVMLError as error:
            raise NvmlMissing(f"NVML: {error}") from error
        self._events = self._registered()

    def _named(self, index: int, handle: Any) -> DeviceReading:
        nvml = self._nvml
        name = self._asked(nvml.nvmlDeviceGetName, handle) or f"device {index}"
        uuid = self._asked(nvml.nvmlDeviceGetUUID, handle) or f"index {index}"
        serial = self._asked(nvml.nvmlDeviceGetSerial, handle) or ""
        return DeviceReading(index=index, name=_text(name), uuid=_text(uuid), serial=_text(serial))

    def _asked(self, what: Callable[..., Any], *arguments: Any) -> Any:
        """None where it is not supported, not allowed, or the device has gone."""
        try:
            return what(*arguments)
        except self._nvml.NVMLError:
            return None

    def _registered(self) -> Any:
        """For Xids; None where no device tells them."""
        nvml = self._nvml
        events = self._asked(nvml.nvmlEventSetCreate)
        hears = False
        for handle, _ in self._devices:
            try:
                nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
                hears = True
            except nvml.NVMLError:
                continue
        return events if hears else None

    @property
    def hears_xids(self) -> bool:
        return self._events is not None

    def read(self) -> list[DeviceReading]:
        return [self._read(handle, named) for handle, named in self._devices]

    def _read(self, handle: Any, named: DeviceReading) -> DeviceReading:
        nvml = self._nvml
        try:
            temperature = nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
        except nvml.NVMLError as error:
            if getattr(error, "value", None) == nvml.NVML_ERROR_GPU_IS_LOST:
                return replace(named, is_lost=True)
            temperature = None
        kinds = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        errors = self._asked(nvml.nvmlDeviceGetTotalEccErrors, handle, *kinds)
        rows = self._asked(nvml.nvmlDeviceGetRemappedRows, handle)
        reasons = self._asked(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle) or 0
        return replace(
            named,
            memory_errors=errors,
            remapped_rows=None if rows is None else rows[0] + rows[1],
            remap_failed=None if rows is None else bool(rows[3]),
            slowed=tuple(words for bit, words in _SLOWED.items() if reasons & bit),
            temperature_c=temperature,
        )

    def processes(self) -> dict[str, list[int]]:
        """By UUID the processes that compute there; often none within a container."""
        ask = self._nvml.nvmlDeviceGetComputeRunningProcesses
        return {
            named.uuid: [process.pid for process in self._asked(ask, handle) or ()]
            for handle, named in self._devices
        }

    def xids(self, wait_s: float) -> list[tuple[str, int]]:
        """Waits for an Xid at most so long; returns UUID and number of all that have come."""
        nvml, found = self._nvml, list[tuple[str, int]]()
        if self._events is None:
            return found
        by_address = {_address(handle): named.uuid for handle, named in self._devices}
        while True:
            try:
                event = nvml.nvmlEventSetWait(self._events, 0 if found else int(1000 * wait_s))
            except nvml.NVMLError:  # the time is over, or a device is lost
                return found
            found.append((by_address.get(_address(event.device), ""), int(event.eventData)))

    def close(self) -> None:
        self._asked(self._nvml.nvmlShutdown)


def given_devices(
    devices: Sequence[DeviceReading], environment: Mapping[str, str]
) -> list[DeviceReading]:
    """Those that ``CUDA_VISIBLE_DEVICES`` leaves to a training; all where that cannot be told."""
    listed = environment.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return list(devices)
    by_bus = environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    has_order = by_bus or len({device.name for device in devices}) <= 1  # else: the fastest first
    found = []
    for word in filter(None, (word.strip() for word in listed.split(","))):
        if word.isdecimal() and not has_order:
            return list(devices)
        found += [d for d in devices if word == str(d.index) or d.uuid.startswith(word)]
    return found or list(devices)


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value
