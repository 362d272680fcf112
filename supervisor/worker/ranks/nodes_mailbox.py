"""What ranks tell each other where they are on several nodes.

A connection between the first ranks of all nodes, by which they tell each other a few numbers.

A connection of ours and none of the script's process groups: it works whatever the script does with
those, needs no device, and is not silenced in a replay.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from supervisor.ranks import RankPlace
from supervisor.storage.run.healing_memory import takes_dead_ranks_place
from supervisor.storage.run.mailboxes import TIMEOUT_S, NodeBarrier, StepMailbox
from supervisor.worker.core.worker_context import WorkerContext

KEY = "supervisor/link"
JOINS_WITHIN_S = 60.0
"""All ranks have just met when the connections are made."""
_HEAD = struct.Struct("<QI")
_HELLO = struct.Struct("<16sI")
_PART = struct.Struct("<I")
_LONGEST = 1 << 28


class Store(Protocol):
    """torch's, by which the ranks have met."""

    def set(self, key: str, value: str) -> None: ...

    def get(self, key: str) -> bytes: ...


class NodeLink:
    """Used by one rank of each node. Node 0 hears all others, and tells everybody what all said.

    Args:
        node, nodes: number of this one, and how many there are.
    """

    def __init__(self, node: int, nodes: int) -> None:
        self._node = node
        self._nodes = nodes
        self._count = 0
        self._token = b""
        self._listener: socket.socket | None = None
        self._peers: dict[int, socket.socket] = {}
        self._was_opened = False

    def open(self, store: Store, host: str) -> None:
        """Called when all ranks have met: by node 0 to be found, by the others to find it.

        Args:
            store: the same for all ranks.
            host: of node 0.

        Raises:
            OSError: they do not find each other.
            RuntimeError: the store does not answer.
        """
        if self._was_opened:
            return
        self._was_opened = True
        if self._node == 0:
            self._listener = _listen(host)
            self._token = secrets.token_bytes(16)
            store.set(KEY, f"{self._listener.getsockname()[1]} {self._token.hex()}")
            return
        port, token = store.get(KEY).decode().split()
        connection = socket.create_connection((host, int(port)), JOINS_WITHIN_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(_HELLO.pack(bytes.fromhex(token), self._node))
        self._peers[0] = connection

    def exchange(self, frame: bytes, timeout_s: float) -> list[bytes] | None:
        """Tells the other nodes, and returns what all tell with the same call, in their order.

        Returns:
            None if a node has left or does not answer: from then on for everybody.
        """
        self._count += 1
        deadline = time.monotonic() + timeout_s
        try:
            if self._node == 0:
                return self._gather(frame, deadline)
            peer = self._peers[0]
            self._send(peer, frame, deadline)
            return _split(self._receive(peer, deadline), self._nodes)
        except (OSError, LookupError, ValueError):
            self.leave()
            return None

    def leave(self) -> None:
        """This node exchanges nothing any more; the others are not to wait for it."""
        for connection in (*self._peers.values(), self._listener):
            if connection is not None:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
                connection.close()
        self._peers.clear()
        self._listener = None

    def _gather(self, frame: bytes, deadline: float) -> list[bytes]:
        while len(self._peers) < self._nodes - 1:
            self._accept(deadline)
        order = range(1, self._nodes)
        frames = [frame, *(self._receive(self._peers[node], deadline) for node in order)]
        told = b"".join(_PART.pack(len(part)) + part for part in frames)
        for node in order:
            self._send(self._peers[node], told, deadline)
        return frames

    def _accept(self, deadline: float) -> None:
        if self._listener is None:
            raise LookupError("was never opened, or has left")
        self._listener.settimeout(_left_s(deadline))
        connection, _ = self._listener.accept()
        try:
            connection.settimeout(min(_left_s(deadline), JOINS_WITHIN_S))
            token, node = _HELLO.unpack(_read(connection, _HELLO.size))
        except (OSError, ValueError):
            connection.close()
            return
        if not hmac.compare_digest(token, self._token) or not 0 < node < self._nodes:
            connection.close()
            return
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._peers[node] = connection

    def _send(self, peer: socket.socket, data: bytes, deadline: float) -> None:
        peer.settimeout(_left_s(deadline))
        peer.sendall(_HEAD.pack(self._count, len(data)) + data)

    def _receive(self, peer: socket.socket, deadline: float) -> bytes:
        peer.settimeout(_left_s(deadline))
        count, size = _HEAD.unpack(_read(peer, _HEAD.size))
        if count != self._count or size > _LONGEST:
            raise ValueError(f"message {count} came where {self._count} was expected")
        return _read(peer, size)


def _listen(host: str) -> socket.socket:
    """Listens at the address by which the others know this machine; at any where it has none."""
    family, _, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.bind(address)
    except OSError:
        listener.bind(("", 0, *address[2:]))
    listener.listen(1024)
    return listener


def _read(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError("the other end has left")
        data += part
    return bytes(data)


def _split(told: bytes, parts: int) -> list[bytes]:
    found: list[bytes] = []
    while told:
        (size,) = _PART.unpack_from(told) if len(told) >= _PART.size else (len(told),)
        found.append(told[_PART.size : _PART.size + size])
        told = told[_PART.size + size :]
    if len(found) != parts:
        raise ValueError(f"{len(found)} nodes have told something, and {parts} were expected")
    return found


def _left_s(deadline: float) -> float:
    return max(0.001, deadline - time.monotonic())


def pack_all(messages: Sequence[bytes]) -> bytes:
    """Returns messages as one; `unpack_all` undoes it."""
    return b"".join(_PART.pack(len(message)) + message for message in messages)


def unpack_all(data: bytes, count: int) -> list[bytes]:
    """Returns the messages that `pack_all` has made one of.

    Raises:
        ValueError: they are not so many.
    """
    return _split(data, count)


_OTHERS_BYTES = 4096
"""Of one message of any rank but the first, whose observed values alone are the group's."""
_LATER_S = 5.0


class Mailbox(Protocol):
    """By which ranks exchange a few bytes each step; see `StepMailbox.exchange`."""

    rank: int

    @property
    def max_bytes(self) -> int: ...

    @property
    def was_left(self) -> bool: ...

    def exchange(
        self,
        message: bytes,
        timeout_s: float | None = None,
        is_in_vain: Callable[[], bool] | None = None,
    ) -> list[bytes] | None: ...

    def leave(self) -> None: ...


class NodesMailbox:
    """Within a node the mapped file, between nodes a connection of their first ranks.

    A file on a disk that nodes share is no way from one to another: each machine maps its own copy
    of it. So a node's ranks gather what they tell (one file), their first one exchanges that with
    the other nodes (`NodeLink`), and gives the rest of its node what came back (another file).

    Args:
        path: of the node's file; a new one for each attempt.
        place: of this rank.
        link: of this node; used by its first rank alone.

    Raises:
        OSError: the files cannot be made.
    """

    def __init__(
        self, path: Path, place: RankPlace, link: NodeLink, *, timeout_s: float = TIMEOUT_S
    ) -> None:
        local, ranks = place.local_rank, place.local_world_size
        self._gathered = StepMailbox(path, local, ranks, timeout_s=timeout_s)
        room = 2 * (place.world_size * (_OTHERS_BYTES + 8) + self._gathered.max_bytes + 64)
        self._returned = StepMailbox(
            path.with_name(f"{path.name}_all"), local, ranks, slot_bytes=-(-room // 64) * 64
        )
        self.rank = place.rank
        self._place = place
        self._link = link
        self._timeout_s = timeout_s
        self._has_left = False

    @property
    def max_bytes(self) -> int:
        return self._gathered.max_bytes if self._place.is_first_rank else _OTHERS_BYTES

    @property
    def was_left(self) -> bool:
        return self._gathered.was_left or self._returned.was_left

    def exchange(
        self,
        message: bytes,
        timeout_s: float | None = None,
        is_in_vain: Callable[[], bool] | None = None,
    ) -> list[bytes] | None:
        """As `StepMailbox.exchange`, in the order of the ranks of all nodes; `is_in_vain` is asked
        of the ranks of this one."""
        if len(message) > self.max_bytes:
            raise ValueError(f"{len(message)} bytes are more than {self.max_bytes}")
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        told = None if self._has_left else self._exchange(message, limit_s, is_in_vain)
        if told is None:
            self.leave()
        return told

    def leave(self) -> None:
        self._has_left = True
        if self._place.local_rank == 0:
            self._link.leave()
        self._gathered.leave()
        self._returned.leave()

    def _exchange(
        self, message: bytes, timeout_s: float, is_in_vain: Callable[[], bool] | None
    ) -> list[bytes] | None:
        here = self._gathered.exchange(message, timeout_s, is_in_vain)
        if here is None:
            return None
        told = b""
        if self._place.local_rank == 0:
            frames = self._link.exchange(pack_all(here), timeout_s)
            if frames is None:
                return None
            told = b"".join(frames)
        # The others of this node wait for what its first rank waits for.
        returned = self._returned.exchange(told, timeout_s + _LATER_S)
        if returned is None:
            return None
        try:
            return unpack_all(returned[0], self._place.world_size)
        except ValueError:
            return None


def node_barrier(context: WorkerContext) -> NodeBarrier | None:
    """Where the ranks of a replay wait for each other; a mapped file is one node's alone."""
    place = context.place
    if place.is_alone or place.local_world_size != place.world_size or takes_dead_ranks_place():
        return None
    path = context.rundir.mailbox(context.attempt, place.node).with_suffix(".replay")
    try:
        return NodeBarrier(path, place.local_rank, place.local_world_size)
    except OSError:
        return None


def mailbox_of(path: Path, place: RankPlace, link: NodeLink | None) -> Mailbox:
    """The mailbox of the ranks of this node, or of all nodes by a `link` to the others."""
    if link is None:
        return StepMailbox(path, place.local_rank, place.local_world_size)
    return NodesMailbox(path, place, link)
