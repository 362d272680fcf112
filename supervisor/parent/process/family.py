"""The processes that a worker started, so that none outlives it, and their memory."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from supervisor.held_memory import free_bytes

_OWN_END_S = 0.5
_TERM_S = 2.0
_KILL_S = 2.0
_NAP_S = 0.02
_COPY_LOOKS = 10


class Family:
    """Knows the descendants of one worker, by process number and start time.

    The kernel gives orphans to the subreaper, so that all are found below it, daemons included.
    Elsewhere those in the worker's own session are found.
    """

    def __init__(self, worker_pid: int, subreaper_pid: int) -> None:
        self._worker_pid = worker_pid
        self._subreaper_pid = subreaper_pid
        self._known: set[psutil.Process] = set()

    def look(self) -> None:
        """Notes the present descendants; called from time to time while the worker lives."""
        with contextlib.suppress(psutil.Error):
            found = psutil.Process(self._subreaper_pid).children(recursive=True)
            others = {process for process in found if process.pid != self._worker_pid}
            self._known = {process for process in self._known if process.is_running()} | others

    def resident_bytes(self) -> int:
        """Returns the resident memory of the worker and its known descendants."""
        total = 0
        for process in (_process(self._worker_pid), *self._known):
            with contextlib.suppress(psutil.Error):
                total += process.memory_info().rss if process else 0
        return total

    def cpu_s(self) -> float:
        """Returns the processor time that the worker itself has used."""
        with contextlib.suppress(psutil.Error):
            times = psutil.Process(self._worker_pid).cpu_times()
            return float(times.user + times.system)
        return 0.0

    def all_cpu_s(self) -> float:
        """Returns the processor time of the worker and its descendants, ended ones included."""
        total = 0.0
        for process in (_process(self._worker_pid), *self._known):
            with contextlib.suppress(psutil.Error):
                total += sum(process.cpu_times()[:4]) if process else 0.0
        return total

    def end_copies(self, line: Sequence[str], script: str, *, forks: bool) -> list[int]:
        """Kills processes that run the worker's own program: forks of it, or of the user's command.

        Args:
            line: the command line of the worker.
            script: that it runs.
            forks: whether a fork is a copy too, and not something else that the script began.

        Returns:
            Their numbers.
        """
        path, ended = os.path.realpath(script), []
        for _ in range(_COPY_LOOKS):  # one that is forking has no child yet
            self.look()
            for process in self._known:
                with contextlib.suppress(OSError, psutil.Error):
                    words, folder = process.cmdline(), process.cwd()
                    runs = any(os.path.realpath(os.path.join(folder, w)) == path for w in words[1:])
                    is_copy = forks if words == [*line] else runs
                    if process.status() != psutil.STATUS_ZOMBIE and is_copy:
                        process.kill()
                        ended.append(process.pid)
            if ended or not self._known:
                break
            time.sleep(_NAP_S)
        return sorted(ended)

    def stop(self) -> tuple[str, ...]:
        """Ends processes left after the worker: SIGTERM, then SIGKILL; returns their names."""
        # Some end by themselves when the worker does, such as multiprocessing's resource tracker.
        left = _wait(self._all(), _OWN_END_S)
        names = tuple(sorted(map(_name, left)))
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.terminate()
        _wait(left, _TERM_S)
        alive = _wait(self._all(), 0.0)  # also what these have started since
        for process in alive:
            with contextlib.suppress(psutil.Error):
                process.kill()
        _wait(alive, _KILL_S)
        return names

    def _all(self) -> set[psutil.Process]:
        self.look()
        return self._known | self._in_session()

    def _in_session(self) -> set[psutil.Process]:
        found = set()
        for pid in psutil.pids():
            with contextlib.suppress(OSError, psutil.Error):
                if pid != self._worker_pid and os.getsid(pid) == self._worker_pid:
                    found.add(psutil.Process(pid))
        return found


def _process(pid: int) -> psutil.Process | None:
    try:
        return psutil.Process(pid)
    except psutil.Error:
        return None


def _name(process: psutil.Process) -> str:
    try:
        return f"{process.name()} ({process.pid})"
    except psutil.Error:
        return f"process {process.pid}"


def _wait(processes: set[psutil.Process], timeout_s: float) -> set[psutil.Process]:
    """Returns those that still live after at most `timeout_s`.

    Zombies count as ended: in a container without an init nobody collects them.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        alive = {process for process in processes if _lives(process)}
        if not alive or time.monotonic() >= deadline:
            return alive
        time.sleep(_NAP_S)


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySample:
    """Resident memory of a worker with its descendants, and what is free, in GiB."""

    resident_gib: float
    available_gib: float

    def __str__(self) -> str:
        return (
            f"last memory sample: {self.resident_gib:.2f} GiB used by the worker, "
            f"{self.available_gib:.2f} GiB free"
        )


def sample_memory(resident_bytes: int) -> MemorySample:
    """Takes a sample."""
    return MemorySample(resident_gib=resident_bytes / _GIB, available_gib=free_bytes() / _GIB)
