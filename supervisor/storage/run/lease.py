"""Who supervises a run now: a lock on this machine, and a renewed lease for other machines.

Which process supervises a run, and whether it can still be seen here.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import threading
import time
import uuid
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import psutil
import xxhash

from supervisor.errors import RunDirectoryError
from supervisor.storage.files.json_files import parse_json
from supervisor.storage.files.private_files import open_private, write_private
from supervisor.storage.run.rundir import RunDirectory

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


RENEW_S = 5.0
"""Interval of renewals; a dozen may fail before the lease is stale."""
STALE_S = 90.0
"""Age of a stale lease: 60 s of old NFS attributes (acregmax) and 30 s for a slow host or
server."""


class Lease:
    """The right to supervise a run, from `take_lease` to `release`; a thread renews it.

    On one machine a file lock decides, between machines the lease: a file whose time is renewed.
    Only the disk's own times are compared, so the clocks of the hosts do not matter.
    """

    def __init__(self, rundir: RunDirectory, holder: Holder, lock_fd: int) -> None:
        self._path = rundir.lease
        self._holder = holder
        self._lock_fd = lock_fd
        self._released = threading.Event()
        self._taken_by: Holder | None = None
        self._thread = threading.Thread(target=self._renew_often, name="lease", daemon=True)

    @property
    def taken_by(self) -> Holder | None:
        """Who took the run over with ``--force``; None while it is ours."""
        return self._taken_by

    def start(self) -> None:
        """Starts the renewals."""
        self._thread.start()

    def release(self) -> None:
        """Releases the run, unless somebody else has it now."""
        self._released.set()
        if self._thread.ident is not None:
            self._thread.join(RENEW_S)
        if self._taken_by is None:
            with contextlib.suppress(OSError):
                if _is_same(read_holder(self._path), self._holder):
                    self._path.unlink()
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def __enter__(self) -> Lease:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def renew(self) -> None:
        """Renews the lease, or notes that another has it; a disk that refuses is asked again."""
        found = read_holder(self._path)
        if found is not None and not _is_same(found, self._holder):
            self._taken_by = found
            return
        with contextlib.suppress(OSError):
            _write(self._path, self._holder)

    def _renew_often(self) -> None:
        while self._taken_by is None and not self._released.wait(RENEW_S):
            self.renew()


def take_lease(rundir: RunDirectory, *, force: bool = False) -> Lease:
    """Makes this process the supervisor of a run whose folder is there; the caller releases it.

    Args:
        rundir: the run.
        force: take it over from another machine, where the holder is known to be gone; a living
            process of this machine keeps it all the same.

    Raises:
        RunDirectoryError: somebody else supervises it.
        OSError: the folder cannot be written.
    """
    lock_fd, locked = _lock(rundir.lease_lock)
    try:
        _check_free(rundir, locked=locked, force=force)
        mine = this_process()
        _write(rundir.lease, mine, exclusive=not os.path.lexists(rundir.lease))
        found = read_holder(rundir.lease)
        if found is not None and not _is_same(found, mine):  # two at once: the later has it
            raise RunDirectoryError(_refusal(rundir, found, age_s=None))
    except BaseException:
        os.close(lock_fd)
        raise
    return Lease(rundir, mine, lock_fd)


def living_holder(rundir: RunDirectory) -> Holder | None:
    """Returns who seems to supervise the run now; for commands that only look."""
    holder = read_holder(rundir.lease)
    if holder is None:
        return None
    if shares_processes(holder):
        return holder if lives(holder) else None
    age_s = _age_s(rundir)
    return holder if age_s is not None and age_s < STALE_S else None


def _lock(path: Path) -> tuple[int, bool | None]:
    """Returns a descriptor, and whether it has the lock; None on a disk that has no locks."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return fd, False
    except OSError:
        return fd, None
    return fd, True


def _check_free(rundir: RunDirectory, *, locked: bool | None, force: bool) -> None:
    """Raises RunDirectoryError while somebody else supervises the run."""
    holder = read_holder(rundir.lease)
    if holder is None:
        if locked is False:
            raise RunDirectoryError(_refusal(rundir, None, age_s=None))
        return
    if locked is False and holder.is_on_this_machine:
        raise RunDirectoryError(_refusal(rundir, holder, age_s=None))
    if force or (locked and holder.is_on_this_machine):
        return
    if shares_processes(holder) and not lives(holder):
        return
    age_s = _age_s(rundir)
    if locked is False or (age_s is not None and age_s < STALE_S):
        raise RunDirectoryError(_refusal(rundir, holder, age_s=age_s or 0.0))


def _age_s(rundir: RunDirectory) -> float | None:
    """Returns how long ago the lease was renewed, by the disk's clock.

    Creating a file also makes a network disk refresh the folder, so that the lease is the newest.
    """
    probe = rundir.lease.with_name(f".lease.{os.getpid()}.{threading.get_ident()}.now")
    try:
        with open_private(probe, "wb") as file:
            now_s = os.fstat(file.fileno()).st_mtime
    except OSError:
        now_s = time.time()  # read-only for us: this host's clock has to do
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()
    try:
        with open(rundir.lease, "rb") as file:
            return max(0.0, now_s - os.fstat(file.fileno()).st_mtime)
    except OSError:
        return None


def _refusal(rundir: RunDirectory, holder: Holder | None, *, age_s: float | None) -> str:
    where = rundir.root
    if holder is None:
        return f"{where}: another process begins to supervise this run: give a new --run-dir"
    if age_s is None:
        return f"{where}: {holder} is supervising this run: end it first, or give a new --run-dir"
    return (
        f"{where}: {holder} is supervising this run, its lease was renewed {age_s:.0f} s ago: end "
        f"it there, or wait until the lease is {STALE_S:.0f} s old; if you know that it is gone, "
        "`supervisor resume --force`"
    )


def _write(path: Path, holder: Holder, *, exclusive: bool = False) -> None:
    text = text_of(holder)
    if not exclusive:
        write_private(path, text)
        return
    # Whole and only once: a link is refused where the name is taken, on network disks too.
    staged = path.with_name(f".lease.{holder.token}")
    write_private(staged, text)
    try:
        os.link(staged, path)
    except FileExistsError:
        return  # somebody was quicker: the caller reads who
    except OSError:  # a disk without links
        write_private(path, text)
    finally:
        staged.unlink(missing_ok=True)


def _is_same(one: Holder | None, other: Holder) -> bool:
    return one is not None and one.token == other.token
