"""Which ranks a run has, and which of them this process is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

FIRST_RANK = 0
"""The rank whose records speak for the run where a reader takes those of one."""

ALL_RANKS = (FIRST_RANK,)
"""The ranks of an attempt of one process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """Where a worker stands among those that train together; as constructed, it trains alone.

    Attributes:
        rank, world_size: among all ranks.
        local_rank, local_world_size: among those of the same node.
        node, nodes: number of the node, and how many there are.
    """

    rank: int = FIRST_RANK
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    node: int = 0
    nodes: int = 1

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> RankPlace:
        """Returns what torchrun's variables say.

        Raises:
            ValueError: one of them is not a number.
        """

        def number(name: str, default: int) -> int:
            return int(environment.get(name, default))

        return cls(
            rank=number("RANK", FIRST_RANK),
            world_size=number("WORLD_SIZE", 1),
            local_rank=number("LOCAL_RANK", 0),
            local_world_size=number("LOCAL_WORLD_SIZE", 1),
            node=number("GROUP_RANK", 0),
            nodes=number("GROUP_WORLD_SIZE", 1),
        )

    @property
    def is_alone(self) -> bool:
        return self.world_size == 1

    @property
    def is_first_rank(self) -> bool:
        """Whether it speaks and decides *when* for all."""
        return self.rank == FIRST_RANK


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLaunch:
    """How many ranks are started where; names and meanings are torchrun's.

    Attributes:
        nproc_per_node: a number, ``auto``, ``gpu`` or ``cpu``.
        nnodes: ``N`` or ``MIN:MAX``.
        node_rank: this node's number; -1 if not given: in the order in which nodes come.
        rdzv_endpoint, rdzv_backend, rdzv_id, rdzv_conf: where and how nodes meet.
        master_addr, master_port: of the first rank's store; empty and 0: chosen by the meeting.
    """

    nproc_per_node: str = "1"
    nnodes: str = "1"
    node_rank: int = -1
    rdzv_endpoint: str = ""
    rdzv_backend: str = "c10d"
    rdzv_id: str = ""
    rdzv_conf: str = ""
    master_addr: str = ""
    master_port: int = 0

    @property
    def least_nodes(self) -> int:
        return int(self.nnodes.partition(":")[0])

    @property
    def most_nodes(self) -> int:
        return int(self.nnodes.rpartition(":")[2])

    @property
    def has_several_nodes(self) -> bool:
        return self.most_nodes > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlace:
    """Where a node stands among those of one attempt; as constructed, it is the only one.

    Attributes:
        number, count: of this node, from 0, and of all.
        host, port: of the store by which the nodes' agents and the ranks find each other, which
            node 0 has; port 0: node 0 chooses a free one.
        run_id: the ranks' TORCHELASTIC_RUN_ID; empty: chosen by the agent.
    """

    number: int = 0
    count: int = 1
    host: str = "127.0.0.1"
    port: int = 0
    run_id: str = ""


def one_node(launch: RankLaunch | None) -> NodePlace:
    """Returns the place of a node that trains alone."""
    if launch is None or not launch.master_addr:
        return NodePlace(port=0 if launch is None else launch.master_port)
    return NodePlace(host=launch.master_addr, port=launch.master_port)
