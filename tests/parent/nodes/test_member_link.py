"""A node that joins is answered, and misses nothing of what is said right behind the answer."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor.parent.nodes.member_link import Answer, MemberLink, introduce
from supervisor.ranks import RankLaunch
from supervisor.storage.run.rundir import RunDirectory


@pytest.fixture
def ends() -> Iterator[tuple[MemberLink, socket.socket]]:
    listener = socket.create_server(("127.0.0.1", 0))
    link = MemberLink(socket.create_connection(listener.getsockname()))
    other, _ = listener.accept()
    yield link, other
    for one in (link, other, listener):
        one.close()


def answered(ends: tuple[MemberLink, socket.socket], folder: Path, *said: Any) -> Answer:
    """What a node makes of these messages, which come all at once, and of the end behind them."""
    link, other = ends
    other.sendall(b"".join(json.dumps(message).encode() + b"\n" for message in said))
    other.shutdown(socket.SHUT_WR)
    rundir = RunDirectory(folder)
    return introduce(link, rundir, RankLaunch(nnodes="2"), local_ranks=2, target="train.py")


def test_an_order_right_behind_the_welcome_is_there(
    ends: tuple[MemberLink, socket.socket], tmp_path: Path
) -> None:
    probe = {"probe": "elsewhere"}

    answer = answered(ends, tmp_path, probe, {"welcome": {"name": "x"}}, {"attempt": 1})

    assert answer == Answer(welcome={"name": "x"})
    assert ends[0].take_one(1.0) == {"attempt": 1}
    assert ends[0].take_one(0.0) is None


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ([{"probe": "elsewhere"}, {"refused": "why"}], Answer(refused="why")),
        ([{"probe": "elsewhere"}, {"full": "all are here"}], Answer(why_not="all are here")),
        ([{"probe": "elsewhere"}], Answer(why_not="it did not answer")),
        ([{"hello": 1}], Answer(why_not="what listens there is no supervisor of this version")),
    ],
)
def test_each_answer_is_understood(
    ends: tuple[MemberLink, socket.socket], tmp_path: Path, said: list[Any], expected: Answer
) -> None:
    assert answered(ends, tmp_path, *said) == expected
