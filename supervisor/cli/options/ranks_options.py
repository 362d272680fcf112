"""Options of several ranks and nodes; names and meanings are torchrun's."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from supervisor.errors import UsageError
from supervisor.ranks import RankLaunch

_ONE_PROCESS = RankLaunch()
_WORDS = ("auto", "gpu", "cpu")


def add_ranks_options(parser: argparse.ArgumentParser) -> None:
    """Adds them; each has torchrun's other spelling, with underscores, too."""
    group = parser.add_argument_group("several ranks and nodes (as torchrun's)")

    def add(name: str, metavar: str, default: object, text: str) -> None:
        other = "--" + name[2:].replace("-", "_")
        kind = type(default)
        group.add_argument(name, other, metavar=metavar, default=default, type=kind, help=text)

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


def add_node_rank(parser: argparse._ActionsContainer) -> None:
    """Adds the option that differs from node to node."""
    parser.add_argument(
        "--node-rank",
        "--node_rank",
        metavar="R",
        default=-1,
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
