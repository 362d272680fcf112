"""Which part this node has in a run of several: it decides, or it follows."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from supervisor.errors import UsageError
from supervisor.ranks import RankLaunch

if TYPE_CHECKING:
    from supervisor.parent.nodes.node_role import NodeRole
    from supervisor.parent.process.launch import LaunchSpec


def node_role_of(args: argparse.Namespace, ranks: RankLaunch | None) -> NodeRole | None:
    """Returns this node's seat; None for one node.

    Raises:
        UsageError: an option of several nodes is missing, or cannot be.
    """
    if ranks is None or not ranks.has_several_nodes:
        return None
    if getattr(args, "run_dir", None) is None and getattr(args, "run", None) is None:
        raise UsageError("run: --nnodes: needs --run-dir, one folder on a disk that all share")
    from supervisor.parent.nodes.node_role import take_node_role

    return take_node_role(ranks)


def run_node(spec: LaunchSpec, node_role: NodeRole | None) -> int:
    """Runs this node to the run's end; returns the exit code, the same for all nodes."""
    if node_role is None or node_role.is_first_node:
        from supervisor.parent.supervisor import Supervisor

        return Supervisor(spec, node_role=node_role).run().exit_code
    from supervisor.parent.nodes.follower import Follower

    return Follower(spec, node_role).run()
