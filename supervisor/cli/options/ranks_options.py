"""Options of several ranks and nodes; names and meanings are torchrun's."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from supervisor.errors import UsageError
from supervisor.ranks import RankLaunch

if TYPE_CHECKING:
    from supervisor.parent.nodes.node_role import NodeRole
    from supervisor.parent.process.launch import LaunchSpec


_ONE_PROCESS = RankLaunch()
_WORDS = ("auto", "gpu", "cpu")
_SPARE_FLAGS = {
    "--standalone": "",  # one node meets nobody: the same
}
_OTHERWISE = {
    "--max-restarts": "restart.crash_limit says when a run is given up (--set)",
    "--monitor-interval": "ranks are always watched",
    "--start-method": "a rank is a process of its own, started anew",
    "--role": "ranks have one role",
    "--log-dir": "each rank's output is kept in RUN/logs",
    "--redirects": "each rank's output is kept in RUN/logs",
    "--tee": "each rank's output is kept in RUN/logs, and shown",
    "--log-line-prefix-template": "each line begins with its rank",
    "--local-ranks-filter": "the output of all ranks is shown",
    "--duplicate-stdout-filters": "the output of all ranks is shown",
    "--duplicate-stderr-filters": "the output of all ranks is shown",
    "--local-addr": "--rdzv-endpoint names the address",
    "--event-log-handler": "events are in RUN/events.jsonl",
    "--signals-to-handle": "preemption.signals names them (--set)",
    "--shutdown-timeout": "watchdog.grace_s is the time to end (--set)",
}
"""Torchrun's, taken so that a launcher changes one word: what is so here, which is told."""
_REFUSED = {
    "--no-python": "a run is a Python script: give it, or wrap the command in one",
    "--run-path": "give the script by its path",
    "--logs-specs": "leave it out, each rank's output is kept in RUN/logs",
    "--numa-binding": "leave it out, and bind with numactl before `supervisor`",
    "--print-completion": "`supervisor completion` prints the supervisor's",
    "--virtual-local-rank": "leave it out, and choose the device by LOCAL_RANK",
}
_SHORT = {"--redirects": "-r", "--tee": "-t"}
_FLAGS = ("--no-python", "--run-path", "--virtual-local-rank")


def add_ranks_options(parser: argparse.ArgumentParser) -> None:
    """Adds them; each has torchrun's other spelling, with underscores, too."""
    group = parser.add_argument_group("several ranks and nodes (as torchrun's)")
    hidden = argparse.SUPPRESS

    def add(name: str, metavar: str, default: object, text: str) -> None:
        kind = type(default)
        told = os.environ.get(_variable(name))
        group.add_argument(
            *_spellings(name), metavar=metavar, default=told or default, type=kind, help=text
        )

    for name in _SPARE_FLAGS:
        group.add_argument(*_spellings(name), action="store_true", help=hidden)
    for name in _OTHERWISE:
        names = [*_spellings(name), *filter(None, [_SHORT.get(name)])]
        group.add_argument(*names, dest=_dest(name), default=None, help=hidden)
    for name in _REFUSED:
        flag: dict[str, Any] = {"action": "store_true"} if name in _FLAGS else {}
        group.add_argument(*_spellings(name), dest=_dest(name), help=hidden, **flag)

    add_nproc_option(
        group, "N", "ranks on this node: a number, auto, gpu or cpu; 1 sets RANK and the like, too"
    )
    add("--nnodes", "N|MIN:MAX", "1", "how many nodes take part")
    add_node_rank(group)
    add("--rdzv-endpoint", "HOST:PORT", "", "where nodes meet: HOST is the node that decides")
    add("--rdzv-backend", "NAME", "c10d", "how they meet: c10d")
    add("--rdzv-id", "ID", "", "the same for all nodes of a run")
    add("--rdzv-conf", "K=V,...", "", "join_timeout, last_call_timeout (seconds), is_host")
    add("--master-addr", "HOST", "", "instead of --rdzv-endpoint")
    add("--master-port", "PORT", 0, "instead of --rdzv-endpoint")


def _spellings(name: str) -> tuple[str, ...]:
    other = "--" + name[2:].replace("-", "_")
    return (name,) if other == name else (name, other)


def _dest(name: str) -> str:
    return name[2:].replace("-", "_")


def _variable(name: str) -> str:
    """The variable that torchrun takes an option from; operators of Kubeflow set some."""
    return "PET_" + _dest(name).upper()


def check_torchruns(args: argparse.Namespace, tell: Callable[[str], object]) -> None:
    """Tells what options of torchrun mean here that mean something else there.

    Raises:
        UsageError: one that cannot be honoured.
    """
    for name, advice in _REFUSED.items():
        if getattr(args, _dest(name), None):
            raise UsageError(f"run: {name}: torchrun's, not supported: {advice}")
    for name, instead in _OTHERWISE.items():
        if getattr(args, _dest(name), None) is not None:
            tell(f"{name}: not as with torchrun: {instead}")


def add_node_rank(parser: argparse._ActionsContainer) -> None:
    """Adds the option that differs from node to node."""
    parser.add_argument(
        "--node-rank",
        "--node_rank",
        metavar="R",
        default=os.environ.get(_variable("--node-rank")) or -1,
        type=int,
        help="number of this node; 0 decides (default: in the order in which nodes come)",
    )


def ranks_of(args: argparse.Namespace) -> RankLaunch | None:
    """Returns what the options ask for; None for one process, started without an agent.

    Raises:
        UsageError: a value that is none.
    """
    asked = checked_nproc("run", args.nproc_per_node or _ONE_PROCESS.nproc_per_node)
    nodes = re.fullmatch(r"([1-9]\d*)(?::([1-9]\d*))?", args.nnodes)
    if nodes is None or int(nodes[2] or nodes[1]) < int(nodes[1]):
        raise UsageError(f"run: --nnodes {args.nnodes}: give a number from 1, or MIN:MAX")
    launch = RankLaunch(
        nproc_per_node=asked,
        nnodes=args.nnodes,
        node_rank=args.node_rank,
        rdzv_endpoint=args.rdzv_endpoint,
        rdzv_backend=args.rdzv_backend,
        rdzv_id=args.rdzv_id,
        rdzv_conf=args.rdzv_conf,
        master_addr=args.master_addr,
        master_port=args.master_port,
    )
    return None if launch == _ONE_PROCESS and args.nproc_per_node is None else launch


def add_nproc_option(parser: argparse._ActionsContainer, metavar: str, text: str) -> None:
    """Adds ``--nproc-per-node`` alone; None where it is not given."""
    parser.add_argument("--nproc-per-node", "--nproc_per_node", metavar=metavar, help=text)


def take_operators_ranks(args: argparse.Namespace) -> None:
    """Takes the number of ranks from where torchrun does, unless it was given."""
    if args.nproc_per_node is None:
        args.nproc_per_node = os.environ.get(_variable("--nproc-per-node")) or None


def ranks_again(args: argparse.Namespace, begun: Mapping[str, Any]) -> RankLaunch | None:
    """Returns how a run that is resumed starts its ranks; None for one process, started directly.

    Args:
        begun: how the run was begun (`RankLaunch`); empty for one process.

    Raises:
        UsageError: a value that is none, or this node's number is not given where nodes have one.
    """
    launch = RankLaunch(**begun)
    if launch.node_rank >= 0 > args.node_rank:
        raise UsageError("resume: --node-rank: give this node's number, as when the run began")
    launch = replace(launch, node_rank=args.node_rank)
    if args.nproc_per_node is None:
        return launch if begun else None
    asked = replace(launch, nproc_per_node=checked_nproc("resume", args.nproc_per_node))
    return asked if begun or asked != _ONE_PROCESS else None


def checked_nproc(command: str, asked: str) -> str:
    """Returns what was asked for.

    Raises:
        UsageError: it is neither a number from 1 nor one of the words.
    """
    if asked not in _WORDS and not (asked.isdecimal() and int(asked) > 0):
        raise UsageError(
            f"{command}: --nproc-per-node {asked}: give a number from 1, auto, gpu or cpu"
        )
    return asked


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
