"""How a node introduces itself to the first one, and what that one answers."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from supervisor.parent.nodes.member_link import MemberLink
from supervisor.parent.nodes.probe_file import read_probe
from supervisor.ranks import RankLaunch
from supervisor.storage.files.versions import current_versions
from supervisor.storage.run.rundir import RunDirectory

_LOOK_S = 0.1
_SPEAKS_WITHIN_S = 30.0
_ANSWERS_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One of the three.

    Attributes:
        welcome: what all run; None if this node was not let in.
        refused: why this node cannot take part, however often it asks.
        why_not: why it came to no answer; asking again may help.
    """

    welcome: Mapping[str, Any] | None = None
    refused: str = ""
    why_not: str = ""


def introduce(
    link: MemberLink, rundir: RunDirectory, launch: RankLaunch, *, local_ranks: int, target: str
) -> Answer:
    """Returns the first node's answer, after 90 s at most and the look for its probe file.

    Args:
        link: to what listens where the nodes meet.
        rundir: as this node sees it.
        launch: this node's options.
        local_ranks: how many ranks it starts.
        target: name of the script that it runs.
    """
    probe = _probe(link)
    if probe is None:
        return Answer(why_not="what listens there is no supervisor of this version")
    link.send(
        secret=read_probe(rundir, probe),
        versions=current_versions(),
        local_ranks=local_ranks,
        node_rank=launch.node_rank,
        rdzv_id=launch.rdzv_id,
        target=target,
        host=socket.gethostname(),
        pid=os.getpid(),
    )
    deadline = time.monotonic() + _ANSWERS_WITHIN_S
    while time.monotonic() < deadline:
        message = link.take_one(_LOOK_S) or {}  # an order may be right behind the welcome
        if "refused" in message:
            return Answer(refused=str(message["refused"]))
        if "full" in message:
            return Answer(why_not=str(message["full"]))
        if "welcome" in message:
            return Answer(welcome=message["welcome"])
        if not message and link.is_closed:
            break
    return Answer(why_not="it did not answer")


def _probe(link: MemberLink) -> str | None:
    """Returns what the first message names; None if none comes, or it is another's."""
    deadline = time.monotonic() + _SPEAKS_WITHIN_S
    while time.monotonic() < deadline and not link.is_closed:
        message = link.take_one(_LOOK_S)
        if message is not None:
            return str(message["probe"]) if "probe" in message else None
    return None
