"""What ranks tell each other where they are on several nodes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from supervisor.ranks import RankPlace
from supervisor.storage.run.rank_board import TIMEOUT_S, RankBoard
from supervisor.worker.group.node_link import NodeLink, pack_all, unpack_all

_OTHERS_BYTES = 4096
"""Of one message of any rank but the first, whose observed values alone are the group's."""
_LATER_S = 5.0


class Board(Protocol):
    """By which ranks exchange a few bytes each step; see `RankBoard.exchange`."""

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


class NodesBoard:
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
        self._gathered = RankBoard(path, local, ranks, timeout_s=timeout_s)
        room = 2 * (place.world_size * (_OTHERS_BYTES + 8) + self._gathered.max_bytes + 64)
        self._returned = RankBoard(
            path.with_name(f"{path.name}_all"), local, ranks, slot_bytes=-(-room // 64) * 64
        )
        self.rank = place.rank
        self._place = place
        self._link = link
        self._timeout_s = timeout_s
        self._has_left = False

    @property
    def max_bytes(self) -> int:
        return self._gathered.max_bytes if self._place.leads else _OTHERS_BYTES

    @property
    def was_left(self) -> bool:
        return self._gathered.was_left or self._returned.was_left

    def exchange(
        self,
        message: bytes,
        timeout_s: float | None = None,
        is_in_vain: Callable[[], bool] | None = None,
    ) -> list[bytes] | None:
        """As `RankBoard.exchange`, in the order of the ranks of all nodes; `is_in_vain` is asked
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


def board_of(path: Path, place: RankPlace, link: NodeLink | None) -> Board:
    """The board of the ranks of this node, or of all nodes by a `link` to the others."""
    if link is None:
        return RankBoard(path, place.local_rank, place.local_world_size)
    return NodesBoard(path, place, link)
