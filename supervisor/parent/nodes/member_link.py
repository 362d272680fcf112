"""JSON lines between the parents of two nodes.

A connection of its own, and not files in the run directory: a shared disk may show a file a minute
late, and a connection ends in the moment in which the other parent does.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
from typing import Any

SILENT_S = 20
"""A machine that is gone without a word is noticed so much later; torch's own default is 15 s."""
_SEND_S = 10.0
_LONGEST = 1 << 20


class MemberLink:
    """One end of it.

    Attributes:
        is_closed: the other end is gone, or has sent what is no message.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._unread = b""
        self._waiting: list[dict[str, Any]] = []
        self.is_closed = False
        connection.settimeout(_SEND_S)
        _watch(connection)

    def fileno(self) -> int:
        return self._connection.fileno()

    def send(self, **message: Any) -> None:
        """Sends one message; one that nobody takes any more is lost."""
        try:
            self._connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self.is_closed = True

    def take(self, timeout_s: float = 0.0) -> list[dict[str, Any]]:
        """Returns the messages that have come, waiting for the first one at most so long."""
        waiting, self._waiting = self._waiting, []
        if self.is_closed or waiting:
            return waiting
        try:
            while select.select([self._connection], [], [], timeout_s)[0]:
                data = self._connection.recv(65536)
                self._unread += data
                if not data or len(self._unread) > _LONGEST:
                    self.is_closed = True
                    break
                timeout_s = 0.0
        except (OSError, ValueError):
            self.is_closed = True
        *lines, self._unread = self._unread.split(b"\n")
        return self._read(lines)

    def take_one(self, timeout_s: float) -> dict[str, Any] | None:
        """Returns the first message; those that came with it are still there for the next call."""
        first, *self._waiting = self.take(timeout_s) or [None]  # type: ignore[list-item]
        return first

    def close(self) -> None:
        self.is_closed = True
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _read(self, lines: list[bytes]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for line in lines:
            try:
                message = json.loads(line)
            except (ValueError, RecursionError):
                message = None
            if not isinstance(message, dict):
                self.is_closed = True
                break
            found.append(message)
        return found


def _watch(connection: socket.socket) -> None:
    """Makes the kernel notice when the other machine is gone."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    wanted = {
        "TCP_KEEPIDLE": SILENT_S // 4,
        "TCP_KEEPINTVL": SILENT_S // 4,
        "TCP_KEEPCNT": 3,
        "TCP_USER_TIMEOUT": 1000 * SILENT_S,
    }
    for name, value in wanted.items():
        if hasattr(socket, name):  # Linux has them all
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
