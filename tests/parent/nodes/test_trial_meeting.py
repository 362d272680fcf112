"""Nodes meet before a run: they find out whether they can, and leave nothing behind."""

from __future__ import annotations

import functools
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from supervisor.errors import UsageError
from supervisor.parent.nodes.member_link import read_probe
from supervisor.parent.nodes.trial_meeting import TrialMeeting, meet
from supervisor.ranks import RankLaunch
from supervisor.storage.run.rundir import RunDirectory


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def launch(port: int, rank: int, join_s: float = 60.0) -> RankLaunch:
    return RankLaunch(
        nnodes="2",
        node_rank=rank,
        rdzv_endpoint=f"127.0.0.1:{port}",
        rdzv_conf=f"join_timeout={join_s}",
    )


def both(first: Path, second: Path) -> list[TrialMeeting]:
    """What two nodes find that see these run directories."""
    port = free_port()
    with ThreadPoolExecutor(2) as nodes:
        found = [
            nodes.submit(meet, launch(port, rank), RunDirectory(folder), lambda line: None)
            for rank, folder in enumerate((first, second))
        ]
        return [one.result(120.0) for one in found]


def test_nodes_that_can_train_together_meet_and_leave_nothing(tmp_path: Path) -> None:
    found = both(tmp_path / "run", tmp_path / "run")

    assert [(one.missed, one.refused) for one in found] == [("", ""), ("", "")]
    assert list(tmp_path.iterdir()) == []


def test_versions_that_differ_are_named_on_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "supervisor.parent.nodes.member_link.current_versions", lambda: {"torch": "1.0"}
    )

    found = both(tmp_path / "run", tmp_path / "run")

    assert all("torch 1.0" in one.refused for one in found)


def test_a_run_directory_that_is_not_shared_is_named_on_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks_briefly = functools.partial(read_probe, within_s=0.5)
    monkeypatch.setattr("supervisor.parent.nodes.member_link.read_probe", looks_briefly)

    found = both(tmp_path / "one", tmp_path / "other")

    assert all("does not see the same run directory" in one.refused for one in found)


@pytest.mark.parametrize(("rank", "said"), [(0, "1 of 2 nodes"), (1, "the first node was not")])
def test_a_node_that_stays_alone_says_so(tmp_path: Path, rank: int, said: str) -> None:
    found = meet(launch(free_port(), rank, 0.1), RunDirectory(tmp_path / "run"), lambda line: None)

    assert said in found.missed
    assert not found.refused


def test_a_port_that_is_taken_is_refused(tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        pytest.raises(UsageError, match="give another port"),
    ):
        meet(launch(other.getsockname()[1], 0), RunDirectory(tmp_path), lambda line: None)
