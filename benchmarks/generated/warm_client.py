"""Runs programs in forks of a warm process: plain, and under the supervisor's own outer loop."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from supervisor.config import load_config, load_policy
from supervisor.own_process import worker_environment
from supervisor.parent.process.launch import LaunchSpec
from supervisor.parent.process.process import GuardedProcess
from supervisor.parent.supervisor import Supervisor
from supervisor.parent.terminal.output import OutputPump

ROOT = Path(__file__).parents[2]
SETTINGS = (
    "restart.backoff_s=0.0",
    "report.enabled=false",
    "report.picture_every_steps=0",
    "checkpoint.background=false",  # the same checkpoint every time
)
WAYS = ("", "file", "pipe")
"""By which a program is given its standard input; empty: nothing is there."""
INPUT = "".join(f"{n % 97}\n" for n in range(8000)).encode()


@dataclass(frozen=True)
class Left:
    """What a program left behind: how it ended, what it printed."""

    returncode: int
    stdout: str
    stderr: str


class WarmClient:
    """Starts the warm process, and asks it for others, one at a time. Close it in the end."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        environment = {**worker_environment(), "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
        environment.pop("PYTHONUNBUFFERED", None)  # it is read when Python begins, not in a fork
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.generated.warm_process", str(theirs.fileno())],
            cwd=ROOT,
            env=environment,
            pass_fds=(theirs.fileno(),),
        )
        theirs.close()
        self._socket = ours
        self.pid = self._process.pid

    def close(self) -> None:
        self._socket.close()
        self._process.wait(60.0)

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def plain(self, folder: Path, script: str, *, count_to: Path, given: str = "") -> Left:
        """Runs a script as python would; `count_to`: where the names of its moments go; `given`: by
        which way it is given its standard input, see `WAYS`."""
        out, errors = folder.with_suffix(".out"), folder.with_suffix(".err")
        with open(out, "wb") as first, open(errors, "wb") as second, _given(given):
            forked = self.fork(
                {"program": script, "folder": str(folder), "count_to": str(count_to)},
                first.fileno(),
                second.fileno(),
            )
            forked.wait()
            forked.dismiss(keep=True)
        return Left(forked.returncode or 0, out.read_text(), errors.read_text())

    def supervised(
        self,
        folder: Path,
        script: str,
        *,
        settings: Sequence[str],
        kills: Sequence[int] = (),
        given: str = "",
    ) -> Left:
        """Runs a script under the outer loop of `supervisor run`, in this very process.

        It has a case library of its own: what helped one run is not tried in the next one, nor in
        the user's.

        Args:
            kills: numbers of moments; the first attempt is killed at the first of them, and so on.
            given: by which way the script is given its standard input, see `WAYS`.
        """
        out, errors = folder.with_suffix(".out"), folder.with_suffix(".err")
        left = list(kills)
        cases = {"SUPERVISOR_CASES": str(folder.with_suffix(".cases"))}

        def start(
            command: Sequence[str], *, stdout: int, stderr: int, env: Mapping[str, str]
        ) -> _Forked:
            kill_at = left.pop(0) if left else None
            words = list(command[command.index("--run-dir") :])
            asked = {"arguments": words, "folder": str(folder), "kill_at": kill_at}
            return self.fork({**asked, "environment": cases}, stdout, stderr)

        spec = LaunchSpec(
            kind="script",
            target=script,
            run_dir=folder / "run",
            settings=load_config("default", [*SETTINGS, *settings]),
            policy=load_policy("default", []),
            quiet=True,
        )
        with (
            open(out, "wb") as first,
            open(errors, "wb") as second,
            _in_folder(folder),
            _given(given),
        ):

            def pump(log: Any, *, line: Any) -> OutputPump:
                return OutputPump(
                    log, line=line, stdout_fd=first.fileno(), stderr_fd=second.fileno()
                )

            with (
                mock.patch.dict(os.environ, cases),
                mock.patch("supervisor.parent.process.process.GuardedProcess", start),
                mock.patch("supervisor.parent.attempt.OutputPump", pump),
            ):
                result = Supervisor(spec).run()
        return Left(result.exit_code, out.read_text(), errors.read_text())

    def fork(self, request: Mapping[str, Any], stdout: int, stderr: int) -> _Forked:
        """Returns a process that is one of those that the supervisor guards."""
        nothing = {"program": None, "kill_at": None, "count_to": None, "environment": {}}
        status, told = os.pipe()
        words = json.dumps({**nothing, **request}).encode()
        socket.send_fds(self._socket, [words], [stdout, stderr, told, 0])
        os.close(told)
        return _Forked(status, self.pid)


class _Forked(GuardedProcess):
    """A process of the warm one; it has no subreaper."""

    def __init__(self, status: int, parent: int) -> None:
        self._told = b""
        self._returncode: int | None = None
        self._status = status
        self._control = -1
        self._pidfd = -1
        self.subreaper_pid = parent
        self.pid = self._first_word()

    def dismiss(self, *, keep: bool) -> None:
        if not keep:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        self._close()

    def _close(self) -> None:
        if self._status >= 0:
            os.close(self._status)
        self._status = -1


@contextlib.contextmanager
def _given(way: str) -> Iterator[None]:
    """Descriptor 0 of this process, as a shell would have it: a file, or a pipe."""
    before = os.dup(0)
    source, end = os.pipe() if way == "pipe" else (os.open(os.devnull, os.O_RDONLY), -1)
    if way == "pipe":
        os.write(end, INPUT)  # less than a pipe holds
        os.close(end)
    elif way == "file":
        with tempfile.TemporaryFile() as file:
            file.write(INPUT)
            file.seek(0)
            os.dup2(file.fileno(), source)
    os.dup2(source, 0)
    os.close(source)
    try:
        yield
    finally:
        os.dup2(before, 0)
        os.close(before)


@contextlib.contextmanager
def _in_folder(folder: Path) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
