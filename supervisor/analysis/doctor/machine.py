"""The checks that need no script: versions, disk, saving and restoring a state."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

import supervisor
from supervisor.device_health import Nvml
from supervisor.version import __version__


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What was checked, whether it is all right, and the figures; if not, what to do."""

    name: str
    ok: bool
    detail: str


_WRITE_MIB = 32
_MIN_FREE_GIB = 2.0
_MIN_WRITE_MIB_S = 20.0
_TIMEOUT_S = 300.0
_GIB = float(1 << 30)


def check_machine(home: Path, folder: Path) -> list[Check]:
    """Returns the checks of this installation and of the disk.

    Args:
        home: where the runs will be; only looked at.
        folder: where the speed of writing is measured.
    """
    return [
        _python(),
        _name_clash(Path(supervisor.__file__).parent),
        _memory(),
        _disk_space(home),
        _disk_speed(folder),
        *_torch_checks(),
        _devices(),
    ]


def _python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    wanted = sys.version_info >= (3, 10)
    detail = f"Python {version}, training-supervisor {__version__}"
    return Check(name="python", ok=wanted, detail=detail if wanted else f"{detail}: 3.10 is needed")


def _name_clash(package: Path) -> Check:
    """PyPI's `supervisor` (supervisord) has the same import name, so their files get mixed."""
    mixed = (package / "supervisord.py").exists()
    try:
        metadata.distribution("supervisor")
        installed = True
    except metadata.PackageNotFoundError:
        installed = False
    if mixed or installed:
        detail = (
            "supervisord is installed under the same import name: pip uninstall -y supervisor "
            "training-supervisor && pip install training-supervisor"
        )
        return Check(name="import name", ok=False, detail=detail)
    return Check(name="import name", ok=True, detail="no other package is called supervisor")


def _memory() -> Check:
    free = psutil.virtual_memory().available / _GIB
    detail = f"{free:.1f} GiB free"
    if free < 1.0:
        return Check(name="memory", ok=False, detail=f"{detail}: end other processes")
    return Check(name="memory", ok=True, detail=detail)


def _disk_space(home: Path) -> Check:
    free = shutil.disk_usage(home).free / _GIB
    detail = f"{free:.1f} GiB free in {home}"
    if free >= _MIN_FREE_GIB:
        return Check(name="disk space", ok=True, detail=detail)
    detail += f": checkpoints need room: free {_MIN_FREE_GIB:g} GiB or give another --run-dir"
    return Check(name="disk space", ok=False, detail=detail)


def _disk_speed(folder: Path) -> Check:
    name = "disk speed"
    try:
        speed = _write_speed(folder)
    except OSError as error:
        detail = f"{folder} cannot be written ({error.strerror}): choose another folder"
        return Check(name=name, ok=False, detail=detail)
    detail = f"{speed:.0f} MiB/s written and synced in {folder}"
    if speed >= _MIN_WRITE_MIB_S:
        return Check(name=name, ok=True, detail=detail)
    return Check(name=name, ok=False, detail=f"{detail}: checkpoints take long: use a local disk")


def _write_speed(folder: Path) -> float:
    """Returns MiB a second; the data are random, since some disks compress."""
    block = os.urandom(1 << 20)
    started = time.perf_counter()
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(_WRITE_MIB):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        return _WRITE_MIB / (time.perf_counter() - started)


def _devices() -> Check:
    """What NVML tells of the devices' health."""
    name = "device health"
    try:
        nvml = Nvml()
        devices = nvml.read()
    except Exception as error:
        return Check(name=name, ok=True, detail=f"not looked at: {error}")
    ill, told = False, []
    for device in devices:
        faults = device.faults()
        if device.memory_errors:
            faults.append(f"{device.memory_errors} uncorrected memory errors (ECC)")
        ill |= bool(faults)
        slow = [f"slowed down: {why}" for why in device.slowed]
        rows = [f"{device.remapped_rows} memory rows remapped"] if device.remapped_rows else []
        heat = [] if device.temperature_c is None else [f"{device.temperature_c} °C"]
        told.append(f"{device.title}: {', '.join([*faults, *slow, *rows, *heat]) or 'no figures'}")
    detail = "; ".join(told) or "NVML sees no device"
    if ill:
        detail += ": leave such a device out (CUDA_VISIBLE_DEVICES), or have it tested"
    return Check(name=name, ok=not ill, detail=detail)


def _torch_checks() -> list[Check]:
    """Runs in its own process: if importing torch fails, the other checks still count."""
    line = [sys.executable, "-m", "supervisor.analysis.doctor.state"]
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=_TIMEOUT_S)
        found: list[dict[str, Any]] = json.loads(done.stdout) if done.returncode == 0 else []
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return [Check(name="torch", ok=False, detail=f"{type(error).__name__}: {error}")]
    if found:
        return [Check(**one) for one in found]
    last = (done.stderr.strip().splitlines() or ["no output"])[-1]
    return [Check(name="torch", ok=False, detail=f"{last}: reinstall torch")]
