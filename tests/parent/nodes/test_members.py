"""The first parent lets nodes join that see its run directory and run the same, and no others."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor.errors import SupervisorError
from supervisor.parent.nodes.member_link import MemberLink, ProbeFile, read_probe
from supervisor.parent.nodes.members import Members
from supervisor.parent.nodes.node_role import NodeRole
from supervisor.ranks import RankLaunch
from supervisor.storage.run.run_state import current_versions
from supervisor.storage.run.rundir import RunDirectory

SCRIPT = {"name": "train.py", "target": "train.py"}


class First:
    """The first parent's side, and what it said."""

    def __init__(
        self, folder: Path, *, nnodes: str = "2", join_s: float = 20.0, last_call_s: float = 9.0
    ) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        self.port = listener.getsockname()[1]
        self.signals: list[tuple[int, bool]] = []
        self.warnings: list[str] = []
        self.rundir = RunDirectory(folder)
        self.members = Members(
            NodeRole(
                host="127.0.0.1",
                port=self.port,
                listener=listener,
                join_s=join_s,
                last_call_s=last_call_s,
            ),
            RankLaunch(nnodes=nnodes),
            ProbeFile(self.rundir),
            SCRIPT,
            local_ranks=2,
            on_signal=lambda signum, again: self.signals.append((signum, again)),
            tell=lambda line: None,
            warn=self.warnings.append,
        )

    def joined(self, **changes: Any) -> tuple[MemberLink, dict[str, Any]]:
        """A node that says this of itself, and the answer that it gets."""
        link = MemberLink(socket.create_connection(("127.0.0.1", self.port)))
        name = self._answer(link)["probe"]
        hello = {
            "secret": read_probe(self.rundir, name),
            "versions": current_versions(),
            "local_ranks": 3,
            "node_rank": -1,
            "rdzv_id": "",
            "target": "train.py",
            "host": "other",
            "pid": 7,
        }
        link.send(**{**hello, **changes})
        return link, self._answer(link)

    def _answer(self, link: MemberLink) -> dict[str, Any]:
        for _ in range(200):
            self.members.pump(0.02)
            found = link.take(0.02)
            if found:
                return found[0]
        raise AssertionError("no answer")


@pytest.fixture
def first(tmp_path: Path) -> Iterator[First]:
    made = First(tmp_path)
    yield made
    made.members.close()


def test_a_node_that_sees_the_directory_gets_the_ranks_behind_the_first_ones(first: First) -> None:
    link, answer = first.joined()

    assert answer == {"welcome": SCRIPT}
    assert first.members.gather(lambda: False)
    (member,) = first.members.taking_part
    assert (member.number, member.ranks, first.members.world_size) == (1, (2, 3, 4), 5)
    link.close()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"secret": None}, "does not see the same run directory"),
        ({"versions": {"torch": "1.0"}}, "it has torch 1.0, and the first node"),
        ({"target": "other.py"}, "it runs other.py, and the first node train.py"),
        ({"rdzv_id": "x"}, "--rdzv-id x"),
        ({"node_rank": 1}, "give it on all nodes, or on none"),
    ],
)
def test_a_node_that_does_not_fit_is_refused_with_a_reason(
    first: First, changes: dict[str, Any], expected: str
) -> None:
    link, answer = first.joined(**changes)

    assert expected in answer["refused"]
    assert len(first.warnings) == 1
    link.close()


def test_a_node_too_many_is_told_so_and_may_ask_again(first: First) -> None:
    second, _ = first.joined()

    third, answer = first.joined()

    assert answer == {"full": "all 2 nodes are here already"}
    for link in (second, third):
        link.close()


def test_a_node_that_goes_takes_its_ranks_with_it_and_may_come_again(first: First) -> None:
    link, _ = first.joined()
    first.members.gather(lambda: False)
    link.send(ended=3, code=0)
    link.close()
    for _ in range(50):
        first.members.pump(0.02)
    (member,) = first.members.taking_part
    assert member.codes == {3: 0}
    assert "node 1, other (process 7), is gone" in member.gone

    again, answer = first.joined(pid=8)

    assert "welcome" in answer
    assert first.members.gather(lambda: False)
    assert [found.name for found in first.members.taking_part] == ["other (process 8)"]
    again.close()


def test_a_signal_to_another_parent_is_told(first: First) -> None:
    link, _ = first.joined()

    link.send(signal=15)
    link.send(signal=15)
    for _ in range(50):
        first.members.pump(0.02)

    assert first.signals == [(15, False), (15, True)]
    link.close()


def test_too_few_nodes_are_waited_for_and_then_named(tmp_path: Path) -> None:
    first = First(tmp_path, nnodes="3", join_s=0.1)

    with pytest.raises(SupervisorError, match="1 of 3 nodes are here after 0 s"):
        first.members.gather(lambda: False)
    first.members.close()


def test_as_many_ranks_as_saved_a_checkpoint_do_not_wait_for_more(tmp_path: Path) -> None:
    first = First(tmp_path, nnodes="1:4", last_call_s=0.1)
    assert first.members.gather(lambda: False, ranks=2)  # its own two
    links = [first.joined()[0] for _ in range(2)]

    assert first.members.gather(lambda: False, ranks=5)
    assert [member.ranks for member in first.members.taking_part] == [(2, 3, 4)]
    assert first.members.gather(lambda: False, ranks=11)  # more never came
    assert first.members.world_size == 8

    for link in links:
        link.close()
    first.members.close()


def test_who_asks_to_end_is_not_kept_waiting(first: First) -> None:
    assert not first.members.gather(lambda: True)


def test_what_is_no_message_closes_the_link(first: First) -> None:
    link = MemberLink(socket.create_connection(("127.0.0.1", first.port)))
    os.write(link.fileno(), b"GET / HTTP/1.1\r\n")
    for _ in range(20):
        first.members.pump(0.02)

    link.take(1.0)
    link.take(1.0)
    assert link.is_closed
    assert not first.warnings
    link.close()


def test_a_probe_elsewhere_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "probe_x").write_text("secret")

    assert read_probe(RunDirectory(tmp_path), "../probe_x", within_s=0.0) is None
    assert read_probe(RunDirectory(tmp_path), "nodes/../probe_x", within_s=0.0) is None
