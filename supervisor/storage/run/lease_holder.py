"""Which process supervises a run, and whether it can still be seen here."""

from __future__ import annotations

import json
import os
import socket
import uuid
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import psutil
import xxhash

from supervisor.storage.files.line_file import parse_json

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PID_NAMESPACE = Path("/proc/self/ns/pid")
_CHECKSUM = "checksum"


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A supervisor, as its lease describes it.

    Attributes:
        host: its name, for people: a container that is restarted gets another one.
        boot_id: of the running kernel; processes with the same one share file locks.
        pid_namespace: in which `pid` is valid.
        pid, pid_created: the process, and when it was made (unix seconds).
        token: of this one lease.
    """

    host: str = ""
    boot_id: str = ""
    pid_namespace: str = ""
    pid: int = 0
    pid_created: float = 0.0
    token: str = ""

    @property
    def is_on_this_machine(self) -> bool:
        return bool(self.boot_id) and self.boot_id == _boot_id()

    def __str__(self) -> str:
        return f"process {self.pid} on host {self.host}"


def read_holder(path: Path) -> Holder | None:
    """Returns the holder that a lease names; None if there is no readable lease, or it is damaged:
    by a flipped bit a dead process of this machine would be a living one of another."""
    try:
        value = parse_json(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    known = {field.name: type(field.default) for field in fields(Holder)}
    good = {name: value[name] for name, kind in known.items() if type(value.get(name)) is kind}
    found = Holder(**good) if good.get("token") else None
    if found is not None and value.get(_CHECKSUM, _checksum(found)) != _checksum(found):
        return None  # earlier versions wrote no checksum
    return found


def text_of(holder: Holder) -> str:
    """Returns what `read_holder` reads."""
    return json.dumps({**asdict(holder), _CHECKSUM: _checksum(holder)}) + "\n"


def _checksum(holder: Holder) -> str:
    return xxhash.xxh3_64_hexdigest(json.dumps(asdict(holder)).encode())


def shares_processes(holder: Holder) -> bool:
    """Whether its process would be visible here: same kernel, same process numbers."""
    return holder.is_on_this_machine and holder.pid_namespace == _pid_namespace()


def lives(holder: Holder) -> bool:
    """Whether its process is alive; meaningful where `shares_processes`."""
    try:
        process = psutil.Process(holder.pid)
        made = process.create_time()
        return abs(made - holder.pid_created) < 1.0 and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, ValueError, OverflowError):
        return False


def this_process() -> Holder:
    """Returns this process, under a token of its own."""
    return Holder(
        host=socket.gethostname(),
        boot_id=_boot_id(),
        pid_namespace=_pid_namespace(),
        pid=os.getpid(),
        pid_created=psutil.Process().create_time(),
        token=uuid.uuid4().hex,
    )


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:  # not Linux
        return f"{socket.gethostname()} {psutil.boot_time():.0f}"


def _pid_namespace() -> str:
    try:
        return os.readlink(_PID_NAMESPACE)
    except OSError:
        return ""
