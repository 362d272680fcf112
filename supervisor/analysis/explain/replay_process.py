"""Runs the worker processes of replays: the first from scratch, others forked from a warm one."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from supervisor.own_process import IS_RANK, PARENT, command, worker_environment

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
            process = _worker(arguments, self._folder, file)
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
            self._server = subprocess.Popen(
                command(FORK_SERVER),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=self._folder,
                env={**worker_environment(), PARENT: str(os.getpid())},
                start_new_session=True,
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


def _worker(
    arguments: Sequence[str], folder: str, output: IO[bytes], **more: str
) -> subprocess.Popen[bytes]:
    """Starts a worker that writes into `output`; `more` are further environment variables."""
    return subprocess.Popen(
        [*command(WORKER), *arguments],
        cwd=folder,
        env={**worker_environment(), PARENT: str(os.getpid()), **more},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def _end_group(pid: int) -> None:
    """Ends a whole process group, loader workers included."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


LAST_WORDS_S = 5.0
"""For the others when one has failed, as in a run."""
_LOOK_S = 0.05


def run_ranks(
    ranks: int, folder: str, arguments: Sequence[str], output: Path, timeout_s: float
) -> tuple[int, bool]:
    """Returns the exit code of the first rank that failed, or 0, and whether the time ran out.

    Whatever they started is ended, too.

    Args:
        ranks: how many.
        folder: in which the script runs.
        arguments: of each of them.
        output: where theirs is written, one after the other.
        timeout_s: for all of them together.

    Raises:
        OSError: no process can be started.
    """
    outputs = [output.with_name(f"{output.name}.{rank}") for rank in range(ranks)]
    meeting = _meeting()
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for rank, path in enumerate(outputs):
            with open(path, "wb") as file:
                place = {**meeting, **_place(rank, ranks), IS_RANK: "1"}
                processes.append(_worker(arguments, folder, file, **place))
        return _await(processes, time.monotonic() + max(timeout_s, 1.0))
    finally:
        for process in processes:
            _end_group(process.pid)
            process.wait()
        output.write_bytes(b"".join(path.read_bytes() for path in outputs if path.exists()))


def _await(processes: Sequence[subprocess.Popen[bytes]], deadline: float) -> tuple[int, bool]:
    failed = 0
    while any(process.poll() is None for process in processes):
        codes = [process.returncode for process in processes if process.returncode is not None]
        if not failed and any(codes):
            failed = next(filter(None, codes))
            deadline = min(deadline, time.monotonic() + LAST_WORDS_S)
        if time.monotonic() >= deadline:
            return failed or -signal.SIGKILL, not failed
        time.sleep(_LOOK_S)
    return failed or next((p.returncode for p in processes if p.returncode), 0), False


def _meeting() -> dict[str, str]:
    """Torchrun's variables that are the same for all: the first rank's store is theirs."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    return {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "TORCHELASTIC_RUN_ID": "replay",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
    }


def _place(rank: int, ranks: int) -> dict[str, str]:
    """Torchrun's variables of one rank of one node."""
    names = {"RANK": rank, "LOCAL_RANK": rank, "ROLE_RANK": rank, "GROUP_RANK": 0}
    sizes = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"), ranks)
    places = {**names, **sizes, "GROUP_WORLD_SIZE": 1}
    return {"ROLE_NAME": "default", **{name: str(value) for name, value in places.items()}}
