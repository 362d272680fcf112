"""Follows the health of this node's devices by NVML, in a thread of its own.

NVML may stall for minutes where a device is lost, so nobody waits for it longer than `ANSWER_S`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

import psutil

from supervisor.device_health import DeviceReading, Nvml, NvmlMissing, given_devices, has_devices

ANSWER_S = 3.0
EVERY_S = 10.0
"""Between two looks at counters and clocks; Xids are heard at once."""
_NAP_S = 0.5
_LATE_S = 0.2
"""An Xid may come a moment after the error that it causes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFault:
    """One device's hardware failed at `what` (without a full stop) during an attempt."""

    device: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFindings:
    """What NVML tells of an attempt: what proves a fault of the hardware, and what does not."""

    faults: tuple[DeviceFault, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def sentences(self) -> tuple[str, ...]:
        return (*(f"NVML: {fault.device}: {fault.what}" for fault in self.faults), *self.notes)


class DeviceWatch:
    """Without devices it finds nothing; without NVML neither, and `news` says why.

    Args:
        environment: of the parent, and so of the training.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._environment = dict(os.environ if environment is None else environment)
        self._changed = threading.Condition()  # guards all that follows
        self._news: list[str] = []
        self._wanted = self._looks = 0
        self._looked_s = -EVERY_S
        self._is_over = False
        self._thread: threading.Thread | None = None
        self._forget()
        if has_devices():
            self._thread = threading.Thread(target=self._run, name="devices", daemon=True)
            self._thread.start()

    def _forget(self) -> None:
        self._before: dict[str, DeviceReading] = {}
        self._now: dict[str, DeviceReading] = {}
        self._xids: list[tuple[str, int]] = []
        self._slowed: dict[str, dict[str, int]] = {}
        self._used: set[str] = set()

    def begin_attempt(self) -> None:
        with self._changed:
            self._forget()
            self._wanted += 1
            self._changed.notify_all()

    def news(self) -> list[str]:
        """Returns sentences for the terminal; each comes once."""
        with self._changed:
            news, self._news = self._news, []
        return news

    def findings(self) -> DeviceFindings:
        """Returns what came since `begin_attempt`, of the devices that the training used.

        Where the processes on a device are not shown, those count that it was given.
        """
        if self._thread is None or not self._thread.is_alive():
            return DeviceFindings()
        notes = []
        with self._changed:
            self._wanted += 1
            wanted = self._wanted
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: self._looks >= wanted, ANSWER_S):
                notes.append(f"NVML has not answered for {ANSWER_S:g} s")
            devices = list(self._now.values())
            given = {device.uuid for device in given_devices(devices, self._environment)}
            faults: list[DeviceFault] = []
            for device in devices:
                if device.uuid not in (self._used or given):
                    continue
                xids = [number for uuid, number in self._xids if uuid == device.uuid]
                found = device.faults_since(self._before.get(device.uuid), xids)
                faults += [DeviceFault(device=device.title, what=what) for what in found]
                notes += self._notes(device, xids, is_sound=not found)
        return DeviceFindings(faults=tuple(faults), notes=tuple(notes))

    def _notes(self, device: DeviceReading, xids: list[int], *, is_sound: bool) -> list[str]:
        notes = []
        if is_sound and xids:
            numbers = ", ".join(map(str, dict.fromkeys(xids)))
            told = "which a program or the driver causes as well: no proof of a failing device"
            notes.append(f"NVML: {device.title}: Xid {numbers}, {told}")
        for why, times in self._slowed.get(device.uuid, {}).items():
            hot = "" if device.temperature_c is None else f"; now {device.temperature_c} °C"
            notes.append(f"NVML: {device.title}: slowed down in {times} looks: {why}{hot}")
        return notes

    def close(self) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            nvml = Nvml()
            if not nvml.hears_xids:
                self._say("NVML tells no Xids here: of the devices only counters are watched")
            while not self._is_over:
                self._look(nvml)
            nvml.close()
        except NvmlMissing as why:
            self._say(f"the devices' health is not watched: {why}")
        except Exception as error:
            self._say(f"the devices' health is not watched: {type(error).__name__}: {error}")

    def _say(self, line: str) -> None:
        with self._changed:
            self._news.append(line)

    def _look(self, nvml: Nvml) -> None:
        """Waits for a question or `_NAP_S`, then looks."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or self._wanted > self._looks, _NAP_S)
            wanted = self._wanted
            is_due = wanted > self._looks or time.monotonic() - self._looked_s >= EVERY_S
        xids = nvml.xids(_LATE_S if is_due else 0.0)
        readings = nvml.read() if is_due else []
        used = nvml.processes() if is_due else {}
        ours = {uuid for uuid, pids in used.items() if any(map(_is_ours, pids))}
        with self._changed:
            self._xids += xids
            self._used |= ours
            for reading in readings:
                self._before.setdefault(reading.uuid, reading)
                self._now[reading.uuid] = reading
                times = self._slowed.setdefault(reading.uuid, {})
                for why in reading.slowed:
                    times[why] = times.get(why, 0) + 1
            if is_due:
                self._looks, self._looked_s = wanted, time.monotonic()
                self._changed.notify_all()


def _is_ours(pid: int) -> bool:
    """Whether this process has started it, or one that did."""
    try:
        return os.getpid() in {parent.pid for parent in psutil.Process(pid).parents()}
    except psutil.Error:
        return False
