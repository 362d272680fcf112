"""A process of this node that waits with torch imported, to become the rank that dies."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Mapping
from typing import Any

from supervisor.own_process import STANDBY


class Standby:
    """One a node, for one death; the other side is `supervisor.worker.standby`.

    Args:
        line: command line of each rank of the attempt.
        environment: of any of them.
    """

    def __init__(self, line: Any, environment: Mapping[str, str]) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process: subprocess.Popen[bytes] = subprocess.Popen(
                line,
                env={**environment, STANDBY: "1"},
                stdin=theirs.fileno(),
                start_new_session=True,
            )

    def become(self, environment: Mapping[str, str]) -> subprocess.Popen[bytes] | None:
        """Has it go on as the rank of this environment; None if it is not ready."""
        try:
            if not self._socket.recv(1, socket.MSG_DONTWAIT):
                return None
            self._socket.sendall(json.dumps(dict(environment)).encode() + b"\n")
        except OSError:
            return None
        self._socket.close()
        return self._process

    def end(self) -> None:
        """Nobody has died."""
        self._socket.close()
        self._process.kill()
        self._process.wait()
