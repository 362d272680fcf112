"""Runs the worker processes of replays: the first from scratch, others forked from a warm one."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from supervisor.own_process import PARENT, command, worker_environment

WORKER = "supervisor.worker.__main__"
FORK_SERVER = "supervisor.worker.fork_server"


class ReplayProcesses:
    """Runs workers one after another in one folder.

    From the second replay on they are forked from a process that has imported torch, which takes
    most of a short replay's time. Where forking fails, each starts from scratch.

    Args:
        folder: in which the script runs.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._server: subprocess.Popen[bytes] | None = None
        self._can_fork = sys.platform == "linux"
        self._is_first = True

    def run(self, arguments: Sequence[str], output: Path, timeout_s: float) -> tuple[int, bool]:
        """Returns a worker's exit code, negative after a signal, and whether its time ran out.

        Whatever it started is ended, too.

        Raises:
            OSError: no process can be started.
        """
        deadline = time.monotonic() + max(timeout_s, 1.0)
        if self._can_fork and not self._is_first:
            ended = self._fork(arguments, output, deadline)
            if ended is not None:
                return ended
            self.close()
            self._can_fork = False
        self._is_first = False
        return self._start(arguments, output, deadline)

    def close(self) -> None:
        """Ends the warm process."""
        if self._server is not None:
            self._server.kill()
            self._server.communicate()
            self._server = None

    def _start(self, arguments: Sequence[str], output: Path, deadline: float) -> tuple[int, bool]:
        with open(output, "wb") as file:
            process = self._popen(
                [WORKER, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        try:
            return process.wait(max(0.0, deadline - time.monotonic())), False
        except subprocess.TimeoutExpired:
            return -signal.SIGKILL, True
        finally:
            _end_group(process.pid)
            process.wait()

    def _fork(
        self, arguments: Sequence[str], output: Path, deadline: float
    ) -> tuple[int, bool] | None:
        """Like `_start`; None if the warm process fails."""
        if self._server is None:
            self._server = self._popen(
                [FORK_SERVER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        request = {"arguments": list(arguments), "output": str(output)}
        try:
            self._send(request)
            began = self._receive(deadline)
            if began is None:
                self.close()
                return -signal.SIGKILL, True
            try:
                ended = self._receive(deadline)
            finally:
                _end_group(int(began["pid"]))
            if ended is None:
                self._receive(time.monotonic() + 10.0)
                return -signal.SIGKILL, True
            return int(ended["returncode"]), False
        except (OSError, ValueError, KeyError):
            return None

    def _send(self, request: Mapping[str, Any]) -> None:
        assert self._server is not None
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps(request).encode() + b"\n")
        self._server.stdin.flush()

    def _receive(self, deadline: float) -> dict[str, Any] | None:
        """Returns an answer, None when the time is up; raises ValueError if the server is gone."""
        assert self._server is not None
        assert self._server.stdout is not None
        stream = self._server.stdout
        ready, _, _ = select.select([stream], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return None
        answer: dict[str, Any] = json.loads(stream.readline())
        return answer

    def _popen(self, words: Sequence[str], **streams: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*command(words[0]), *words[1:]],
            cwd=self._folder,
            env={**worker_environment(), PARENT: str(os.getpid())},
            start_new_session=True,
            **streams,
        )


def _end_group(pid: int) -> None:
    """Ends a whole process group, loader workers included."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
