"""``python ready_parent.py ADDRESS WORDS...``: `supervisor WORDS...`, its guardians not executed.

The subreaper of each worker is a fork of the process at ADDRESS (`ready_python.py`); everything
else is the command's own.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from supervisor.cli.main import main
from supervisor.parent.process import process as guarded_process

WORKER = "supervisor.worker.__main__"


def ask(address: str, request: Mapping[str, Any], descriptors: Sequence[int]) -> socket.socket:
    """Asks for a fork with these descriptors; returns the socket that closes with its end."""
    there = socket.socket(socket.AF_UNIX)
    there.connect(address)
    words = json.dumps(request).encode()
    socket.send_fds(there, [len(words).to_bytes(8, "big")], list(descriptors))
    there.sendall(words)
    return there


class ReadyGuardian:
    """A subreaper, as far as `GuardedProcess` uses a `subprocess.Popen`."""

    def __init__(self, there: socket.socket) -> None:
        self._there = there
        self.pid = int.from_bytes(there.recv(4), "big")

    def wait(self, timeout_s: float) -> None:
        """Returns when it has ended, and nothing else holds its side of the socket."""
        self._there.settimeout(timeout_s)
        try:
            self._there.recv(1)
        except TimeoutError as error:
            raise subprocess.TimeoutExpired("guardian", timeout_s) from error
        self._there.close()


def start_at(address: str) -> Callable[..., ReadyGuardian | subprocess.Popen[bytes]]:
    """Returns what starts the guardians of workers in the place of `subprocess.Popen`; an agent's
    is executed as ever."""

    def start(
        line: Sequence[str],
        *,
        stdin: int | None,
        stdout: int,
        stderr: int,
        env: Mapping[str, str],
        pass_fds: tuple[int, int],
        start_new_session: bool,
    ) -> ReadyGuardian | subprocess.Popen[bytes]:
        if WORKER not in line:
            return subprocess.Popen(
                line,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                env=env,
                pass_fds=pass_fds,
                start_new_session=start_new_session,
            )
        command = line[line.index(str(pass_fds[1])) + 1 :]
        request = {"environment": dict(env), "folder": os.getcwd(), "command": command}
        descriptors = [0 if stdin is None else stdin, stdout, stderr, *pass_fds]
        return ReadyGuardian(ask(address, request, descriptors))

    return start


if __name__ == "__main__":
    guarded_process.subprocess = types.SimpleNamespace(  # type: ignore[assignment]
        Popen=start_at(sys.argv[1]), TimeoutExpired=subprocess.TimeoutExpired
    )
    sys.exit(main(sys.argv[2:]))
