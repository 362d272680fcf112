"""One worker process: started in a session of its own, signalled alone, ended with its family."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence

from supervisor.parent.family import Family
from supervisor.parent.launch import LaunchSpec
from supervisor.parent.output import OutputPump

PARENT_PID_VARIABLE = "SUPERVISOR_PARENT_PID"
TUNABLES_VARIABLE = "SUPERVISOR_GLIBC_TUNABLES"
DEFAULT_COMMAND = (sys.executable, "-m", "supervisor.worker")


class WorkerProcess:
    """A worker of one attempt, rank 0.

    Its own session keeps the terminal's Ctrl-C from it and its loader workers: signals reach it
    only through us. It asks the kernel to die with us (PR_SET_PDEATHSIG), for which it is told our
    process id in ``SUPERVISOR_PARENT_PID``; asking in the child is safe where a function between
    fork and exec is not. Must be started from a thread that lives as long as the worker.
    """

    def __init__(
        self,
        spec: LaunchSpec,
        attempt: int,
        output: OutputPump,
        *,
        command: Sequence[str] = DEFAULT_COMMAND,
    ) -> None:
        """Starts it.

        Raises:
            OSError: the interpreter cannot be started.
        """
        self._output = output
        self._popen = subprocess.Popen(
            worker_command(spec, attempt, command),
            stdout=output.stdout,
            stderr=output.stderr,
            env=worker_environment(has_pipe=output.has_pipe, huge_pages=spec.settings.huge_pages),
            start_new_session=True,
        )
        self.signals_sent: list[int] = []
        self._end_fd = _open_end(self.pid)
        self.family = Family(self.pid)
        output.start()

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def returncode(self) -> int | None:
        """None while it lives; negative after a signal."""
        return self._popen.poll()

    def wait(self, timeout_s: float) -> bool:
        """Returns whether it has ended, after at most `timeout_s`."""
        if self._end_fd >= 0 and self._popen.returncode is None:
            waiting = select.poll()  # `select.select` knows no descriptors above 1,023
            waiting.register(self._end_fd, select.POLLIN)
            waiting.poll(1000.0 * timeout_s)
            self._popen.poll()
        else:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.wait(timeout_s)
        return self._popen.returncode is not None

    def send(self, signum: int) -> None:
        """Sends to the worker alone, not to its loader workers; nothing if it has ended."""
        if self._popen.poll() is None:
            self.signals_sent.append(signum)
            self._popen.send_signal(signum)

    def resize(self) -> None:
        """Tells the worker that the user's terminal has another size."""
        self._output.copy_window_size()
        if self._popen.poll() is None:
            self._popen.send_signal(signal.SIGWINCH)

    def end(self) -> int:
        """Kills it if it lives, ends its descendants, and returns how many were left over."""
        if self._popen.poll() is None:
            self.family.look()
            self.send(signal.SIGKILL)
            self._popen.wait()
        if self._end_fd >= 0:
            os.close(self._end_fd)
            self._end_fd = -1
        left = self.family.end()
        self._output.finish()
        return left


def _open_end(pid: int) -> int:
    """Returns a descriptor that becomes readable when the process ends; -1 where there is none.

    Without it `subprocess` looks 45 times a second whether the process has ended.
    """
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):  # not Linux, or one older than 5.3, or forbidden
        return -1


def worker_command(spec: LaunchSpec, attempt: int, command: Sequence[str]) -> list[str]:
    """Returns the whole command line of a worker."""
    line = [
        *command,
        "--run-dir",
        str(spec.run_dir.absolute()),
        "--attempt",
        str(attempt),
        "--rank",
        "0",
    ]
    line += ["--kind", spec.kind, "--target", spec.target]
    if spec.function is not None:
        line += ["--function", spec.function]
    return [*line, "--", *spec.worker_arguments(attempt)]


def worker_environment(*, has_pipe: bool, huge_pages: bool = False) -> dict[str, str]:
    """Returns the worker's environment: ours, and what it must know.

    Into a pipe Python writes in blocks: lines would come late, and a killed worker would take its
    last ones with it. So buffering is switched off there, unless the user has decided otherwise.

    Python salts the hashes of texts anew in each process: a set of class names would have another
    order after a restart, and each class another number. All attempts have one salt.
    """
    environment = dict(os.environ)
    environment[PARENT_PID_VARIABLE] = str(os.getpid())
    environment.setdefault("PYTHONHASHSEED", "0")
    if has_pipe:
        environment.setdefault("PYTHONUNBUFFERED", "1")
    if huge_pages:
        _ask_for_huge_pages(environment)
    return environment


def _ask_for_huge_pages(environment: dict[str, str]) -> None:
    """Adds what the C library reads at its start, before any code of ours runs in the worker.

    There the variable becomes what it was (`worker.heap_pages`), so that neither the script nor
    what it starts sees it. What the user asked of the heap himself stands.
    """
    told = environment.get("GLIBC_TUNABLES", "")
    if "glibc.malloc.hugetlb" not in told:
        environment[TUNABLES_VARIABLE] = told
        environment["GLIBC_TUNABLES"] = ":".join(filter(None, (told, "glibc.malloc.hugetlb=1")))
