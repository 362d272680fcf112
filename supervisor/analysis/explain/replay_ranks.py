"""Runs the ranks of a replay together, on this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from supervisor.own_process import IS_RANK, PARENT, command, worker_environment

WORKER = "supervisor.worker.__main__"
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
            environment = {**worker_environment(), **meeting, **_place(rank, ranks)}
            with open(path, "wb") as file:
                processes.append(
                    subprocess.Popen(
                        [*command(WORKER), *arguments],
                        cwd=folder,
                        env={**environment, PARENT: str(os.getpid()), IS_RANK: "1"},
                        stdin=subprocess.DEVNULL,
                        stdout=file,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                )
        return _await(processes, time.monotonic() + max(timeout_s, 1.0))
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):  # its loader workers included
                os.killpg(process.pid, signal.SIGKILL)
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
