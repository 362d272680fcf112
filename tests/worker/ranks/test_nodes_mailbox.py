"""Ranks of several nodes tell each other the same, in the order of ranks, or lose each other."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from supervisor.ranks import RankPlace
from supervisor.worker.ranks.nodes_mailbox import KEY, NodeLink, NodesMailbox


class FakeStore:
    """As torch's: `get` waits for `set`."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._is_set = threading.Condition()

    def set(self, key: str, value: str) -> None:
        with self._is_set:
            self._values[key] = value.encode()
            self._is_set.notify_all()

    def get(self, key: str) -> bytes:
        with self._is_set:
            assert self._is_set.wait_for(lambda: key in self._values, 10.0)
            return self._values[key]


@pytest.fixture
def opened() -> Iterator[list[NodesMailbox]]:
    """Those that are left at the end of a test."""
    found: list[NodesMailbox] = []
    yield found
    for mailbox in found:
        mailbox.leave()


def mailboxes(
    opened: list[NodesMailbox], folder: Path, ranks_by_node: list[int], timeout_s: float = 20.0
) -> list[NodesMailbox]:
    """One for each rank; their links are open."""
    store, first = FakeStore(), 0
    for node, ranks in enumerate(ranks_by_node):
        for local in range(ranks):
            place = RankPlace(
                rank=first + local,
                world_size=sum(ranks_by_node),
                local_rank=local,
                local_world_size=ranks,
                node=node,
                nodes=len(ranks_by_node),
            )
            link = NodeLink(node, len(ranks_by_node))
            if local == 0:
                link.open(store, "127.0.0.1")
            opened.append(NodesMailbox(folder / f"node_{node}", place, link, timeout_s=timeout_s))
        first += ranks
    return opened


@pytest.mark.parametrize("ranks_by_node", [[1, 1], [2, 3], [1, 2, 1]])
def test_all_ranks_hear_all_in_the_order_of_ranks(
    opened: list[NodesMailbox], tmp_path: Path, ranks_by_node: list[int]
) -> None:
    made = mailboxes(opened, tmp_path, ranks_by_node)

    def run(rank: int) -> list[list[bytes] | None]:
        size = 5000 if rank == 0 else 900
        return [made[rank].exchange(bytes([rank, step]) * (size // 2)) for step in range(30)]

    with ThreadPoolExecutor(len(made)) as pool:
        told = list(pool.map(run, range(len(made))))

    world = range(len(made))
    expected = [
        [bytes([rank, step]) * (2500 if rank == 0 else 450) for rank in world] for step in range(30)
    ]
    assert told == [expected for _ in world]


def test_when_one_rank_leaves_all_nodes_hear_it_at_once(
    opened: list[NodesMailbox], tmp_path: Path
) -> None:
    made = mailboxes(opened, tmp_path, [2, 2])
    began_s = time.monotonic()

    def run(rank: int) -> list[bytes] | None:
        if rank == 3:
            made[rank].leave()
            return None
        return made[rank].exchange(b"x")

    with ThreadPoolExecutor(len(made)) as pool:
        told = list(pool.map(run, range(len(made))))

    assert told == [None] * 4
    assert time.monotonic() - began_s < 15.0
    assert made[0].exchange(b"y") is None


def test_a_node_that_does_not_answer_is_given_up(
    opened: list[NodesMailbox], tmp_path: Path
) -> None:
    made = mailboxes(opened, tmp_path, [1, 1], timeout_s=0.3)

    assert made[0].exchange(b"x") is None
    assert made[1].exchange(b"x") is None


def test_a_rank_but_the_first_has_less_room(opened: list[NodesMailbox], tmp_path: Path) -> None:
    made = mailboxes(opened, tmp_path, [1, 1])

    assert made[0].max_bytes > made[1].max_bytes
    with pytest.raises(ValueError, match="4097 bytes are more than 4096"):
        made[1].exchange(bytes(4097))


def test_a_stranger_is_not_taken_for_a_node() -> None:
    store = FakeStore()
    first, second = NodeLink(0, 2), NodeLink(1, 2)
    first.open(store, "127.0.0.1")
    port = int(store.get(KEY).split()[0])
    stranger = socket.create_connection(("127.0.0.1", port))
    stranger.sendall(bytes(20))
    second.open(store, "127.0.0.1")

    with ThreadPoolExecutor(2) as pool:
        told = [pool.submit(link.exchange, b"x", 20.0) for link in (first, second)]

    assert [found.result() for found in told] == [[b"x", b"x"]] * 2
    for end in (first, second):
        end.leave()
    stranger.close()


def test_a_link_that_was_never_opened_tells_nothing() -> None:
    assert NodeLink(0, 2).exchange(b"x", 1.0) is None
    assert NodeLink(1, 2).exchange(b"x", 1.0) is None
