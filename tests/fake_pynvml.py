"""A module that answers as `pynvml` does, for devices that a test describes."""

from __future__ import annotations

import ctypes
import sys
import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest


class NVMLError(Exception):
    def __init__(self, value: int = 3) -> None:
        self.value = value

    def __str__(self) -> str:
        return {3: "Not Supported", 15: "GPU is lost", 9: "Driver Not Loaded"}[self.value]


@dataclass
class FakeDevice:
    name: str = "NVIDIA H100"
    serial: str | None = "1650"
    uuid: str = "GPU-aaaa"
    memory_errors: int | None = 0
    rows: tuple[int, int, int, int] | None = (0, 0, 0, 0)
    reasons: int = 0
    temperature: int | None = 60
    pids: list[int] = field(default_factory=list)
    is_lost: bool = False
    tells_xids: bool = True


class FakeNvml:
    """Put in place of the module; `xids` are handed out, each as (index, number)."""

    NVMLError = NVMLError
    NVML_ERROR_GPU_IS_LOST = 15
    NVML_TEMPERATURE_GPU = 0
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    nvmlEventTypeXidCriticalError = 8

    def __init__(self, *devices: FakeDevice, refuses: int | None = None) -> None:
        self.devices, self.refuses = devices, refuses
        self.handles = [ctypes.pointer(ctypes.c_int(i)) for i in range(len(devices))]
        self.xids: list[tuple[int, int]] = []
        self.stalls_s = 0.0

    def put_in_place(self, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
        monkeypatch.setitem(sys.modules, "pynvml", self)  # type: ignore[arg-type]
        monkeypatch.setattr("supervisor.parent.watching.device_watch.has_devices", lambda: True)
        return self

    def nvmlInit(self) -> None:
        if self.refuses is not None:
            raise NVMLError(self.refuses)

    def nvmlShutdown(self) -> None:
        pass

    def nvmlDeviceGetCount(self) -> int:
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        return self.handles[index]

    def _told(self, handle: Any, what: str) -> Any:
        time.sleep(self.stalls_s)
        device = self.devices[handle.contents.value]
        if device.is_lost:
            raise NVMLError(15)
        if getattr(device, what) is None:
            raise NVMLError(3)
        return getattr(device, what)

    def nvmlDeviceGetName(self, handle: Any) -> str:
        return self._told(handle, "name")

    def nvmlDeviceGetUUID(self, handle: Any) -> str:
        return self._told(handle, "uuid")

    def nvmlDeviceGetSerial(self, handle: Any) -> str:
        return self._told(handle, "serial")

    def nvmlDeviceGetTemperature(self, handle: Any, sensor: int) -> int:
        return self._told(handle, "temperature")

    def nvmlDeviceGetTotalEccErrors(self, handle: Any, kind: int, counter: int) -> int:
        return self._told(handle, "memory_errors")

    def nvmlDeviceGetRemappedRows(self, handle: Any) -> tuple[int, int, int, int]:
        return self._told(handle, "rows")

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: Any) -> int:
        return self._told(handle, "reasons")

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Any) -> list[Any]:
        return [SimpleNamespace(pid=pid) for pid in self._told(handle, "pids")]

    def nvmlEventSetCreate(self) -> object:
        return object()

    def nvmlDeviceRegisterEvents(self, handle: Any, kinds: int, events: object) -> None:
        if not self.devices[handle.contents.value].tells_xids:
            raise NVMLError(3)

    def nvmlEventSetWait(self, events: object, timeout_ms: int) -> Any:
        if not self.xids:
            raise NVMLError(3)
        index, number = self.xids.pop(0)
        # As the real one: another pointer to the same thing.
        device = ctypes.pointer(self.handles[index].contents)
        return SimpleNamespace(device=device, eventData=number)
