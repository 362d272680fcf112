"""The node that can listen where the nodes meet decides; options are torchrun's."""

from __future__ import annotations

import socket
from dataclasses import replace

import pytest

from supervisor.errors import UsageError
from supervisor.parent.nodes.node_role import take_node_role
from supervisor.ranks import RankLaunch


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_of_two_parents_on_one_machine_the_first_decides() -> None:
    launch = RankLaunch(nnodes="2", rdzv_endpoint=f"127.0.0.1:{free_port()}")

    first, second = take_node_role(launch), take_node_role(launch)

    assert first.is_first_node
    assert not second.is_first_node
    assert str(second) == launch.rdzv_endpoint
    assert first.listener is not None
    first.listener.close()


def test_a_number_decides_where_one_is_given() -> None:
    endpoint = f"127.0.0.1:{free_port()}"

    second = take_node_role(RankLaunch(nnodes="2", node_rank=1, rdzv_endpoint=endpoint))
    first = take_node_role(RankLaunch(nnodes="2", node_rank=0, rdzv_endpoint=endpoint))

    assert not second.is_first_node
    assert first.listener is not None
    first.listener.close()


def test_a_machine_of_another_address_follows() -> None:
    node_role = take_node_role(RankLaunch(nnodes="2", rdzv_endpoint="192.0.2.1:29400"))

    assert not node_role.is_first_node


def test_the_address_of_the_master_is_where_nodes_meet_without_an_endpoint() -> None:
    launch = RankLaunch(nnodes="2", node_rank=1, master_addr="node0")

    assert str(take_node_role(launch)) == "node0:29500"


def test_the_time_to_wait_for_nodes_is_set_as_with_torchrun() -> None:
    conf = "join_timeout=20,last_call_timeout=5,is_host=false"

    node_role = take_node_role(RankLaunch(nnodes="1:2", rdzv_endpoint="localhost", rdzv_conf=conf))

    assert (node_role.join_s, node_role.last_call_s, node_role.is_first_node, node_role.port) == (
        20.0,
        5.0,
        False,
        29400,
    )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"rdzv_endpoint": ""}, "give the same --rdzv-endpoint HOST:PORT"),
        ({"rdzv_endpoint": "node0:http"}, "--rdzv-endpoint node0:http"),
        ({"rdzv_backend": "etcd"}, "--rdzv-backend etcd: give c10d"),
        ({"node_rank": 2}, "--node-rank 2: of 2 nodes the last has number 1"),
        ({"rdzv_conf": "joins=1"}, "--rdzv-conf joins=1: give K=V with K one of is_host"),
        ({"rdzv_conf": "join_timeout=soon"}, "join_timeout=soon: give seconds"),
        ({"rdzv_conf": "is_host=perhaps"}, "is_host=perhaps: give true or false"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, object], expected: str) -> None:
    given: dict[str, object] = {"nnodes": "2", "rdzv_endpoint": "192.0.2.1:29400", **changes}

    with pytest.raises(UsageError, match=expected):
        take_node_role(RankLaunch(**given))  # type: ignore[arg-type]


def test_a_port_that_is_taken_is_told_to_the_node_that_must_have_it() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        endpoint = f"127.0.0.1:{other.getsockname()[1]}"

        with pytest.raises(UsageError, match="give another port to all nodes"):
            take_node_role(RankLaunch(nnodes="2", node_rank=0, rdzv_endpoint=endpoint))


def test_a_name_that_the_cluster_tells_a_little_later_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port = free_port()
    looked: list[str] = []

    def look_up(host: str, *_: object, **__: object) -> list[tuple[object, ...]]:
        looked.append(host)
        if len(looked) < 3:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr("supervisor.parent.nodes.node_role._LOOK_AGAIN_S", 0.01)
    launch = RankLaunch(nnodes="2", node_rank=0, rdzv_endpoint=f"training-master-0:{port}")

    node_role = take_node_role(launch)
    assert node_role.listener is not None
    node_role.listener.close()
    assert len(looked) == 3

    looked.clear()
    with pytest.raises(UsageError, match="a host that this one knows"):
        take_node_role(replace(launch, rdzv_conf="join_timeout=0.001"))
