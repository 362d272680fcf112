"""JSON lines between the parents of two nodes.

A connection of its own, and not files in the run directory: a shared disk may show a file a minute
late, and a connection ends in the moment in which the other parent does.

Whether two nodes see the same run directory: one writes a secret, the other reads it.

Who can read it may join: the run directory is private to its user.

How a node introduces itself to the first one, and what that one answers.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import socket
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supervisor.ranks import RankLaunch
from supervisor.storage.files.private_files import write_private
from supervisor.storage.run.run_state import current_versions
from supervisor.storage.run.rundir import RunDirectory

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


_LOOKS_S = 10.0
_LOOK_S = 0.5


class ProbeFile:
    """The first parent's.

    Attributes:
        name: relative to the run directory, new each time, so that no disk has an old view of it.
        secret: its content.
    """

    def __init__(self, rundir: RunDirectory) -> None:
        """Writes it.

        Raises:
            OSError: the disk refuses.
        """
        self.secret = secrets.token_hex(16)
        self._path = rundir.make(rundir.nodes) / f"probe_{uuid.uuid4().hex}"
        self.name = str(self._path.relative_to(rundir.root))
        write_private(self._path, self.secret)

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)


def read_probe(rundir: RunDirectory, name: str, within_s: float = _LOOKS_S) -> str | None:
    """Returns the secret; None if it cannot be seen here."""
    path = rundir.root / name
    if not Path(name).name.startswith("probe_") or path.parent != rundir.nodes:
        return None
    deadline = time.monotonic() + within_s
    while True:
        try:
            return path.read_text()
        except OSError:
            if time.monotonic() > deadline:
                return None
            time.sleep(_LOOK_S)


_TAKE_S = 0.1
_SPEAKS_WITHIN_S = 30.0
_ANSWERS_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One of the three.

    Attributes:
        welcome: what all run; None if this node was not let in.
        refused: why this node cannot take part, however often it asks.
        why_not: why it came to no answer; asking again may help.
    """

    welcome: Mapping[str, Any] | None = None
    refused: str = ""
    why_not: str = ""


def introduce(
    link: MemberLink, rundir: RunDirectory, launch: RankLaunch, *, local_ranks: int, target: str
) -> Answer:
    """Returns the first node's answer, after 90 s at most and the look for its probe file.

    Args:
        link: to what listens where the nodes meet.
        rundir: as this node sees it.
        launch: this node's options.
        local_ranks: how many ranks it starts.
        target: name of the script that it runs.
    """
    probe = _probe(link)
    if probe is None:
        return Answer(why_not="what listens there is no supervisor of this version")
    link.send(
        secret=read_probe(rundir, probe),
        versions=current_versions(),
        local_ranks=local_ranks,
        node_rank=launch.node_rank,
        rdzv_id=launch.rdzv_id,
        target=target,
        host=socket.gethostname(),
        pid=os.getpid(),
    )
    deadline = time.monotonic() + _ANSWERS_WITHIN_S
    while time.monotonic() < deadline:
        message = link.take_one(_TAKE_S) or {}  # an order may be right behind the welcome
        if "refused" in message:
            return Answer(refused=str(message["refused"]))
        if "full" in message:
            return Answer(why_not=str(message["full"]))
        if "welcome" in message:
            return Answer(welcome=message["welcome"])
        if not message and link.is_closed:
            break
    return Answer(why_not="it did not answer")


def _probe(link: MemberLink) -> str | None:
    """Returns what the first message names; None if none comes, or it is another's."""
    deadline = time.monotonic() + _SPEAKS_WITHIN_S
    while time.monotonic() < deadline and not link.is_closed:
        message = link.take_one(_TAKE_S)
        if message is not None:
            return str(message["probe"]) if "probe" in message else None
    return None
