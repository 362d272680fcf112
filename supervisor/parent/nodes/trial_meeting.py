"""A meeting of the nodes before a run, for `doctor`: they join as for a run, and go home."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from supervisor.parent.nodes.member_link import MemberLink, ProbeFile, introduce
from supervisor.parent.nodes.members import Members, NodesMissing
from supervisor.parent.nodes.node_role import NodeRole, take_node_role
from supervisor.ranks import RankLaunch
from supervisor.storage.run.rundir import RunDirectory

TARGET = "supervisor doctor"
"""In the script's place: so that a run and a check do not take each other for the same."""
_NAP_S = 0.5
_LOOK_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialMeeting:
    """What came of it.

    Attributes:
        place: where the nodes met.
        missed: why they did not meet; empty if they did.
        refused: what they do not agree in; empty if they agree.
    """

    place: str
    missed: str = ""
    refused: str = ""


def meet(launch: RankLaunch, rundir: RunDirectory, say: Callable[[str], None]) -> TrialMeeting:
    """Meets the other nodes, on which the same is called, and returns what came of it.

    The run directory is as it was afterwards.

    Raises:
        UsageError: an option is missing or cannot be, or the port is taken on the first node.
    """
    node_role = take_node_role(launch)
    if not node_role.is_first_node:
        return _follow(node_role, launch, rundir, say)
    try:
        return _first_node(node_role, launch, rundir, say)
    finally:
        for folder in (rundir.nodes, rundir.root):
            with contextlib.suppress(OSError):  # not empty: a run's
                folder.rmdir()


def _first_node(
    node_role: NodeRole, launch: RankLaunch, rundir: RunDirectory, say: Callable[[str], None]
) -> TrialMeeting:
    refusals: list[str] = []
    try:
        probe = ProbeFile(rundir)
    except OSError as error:
        assert node_role.listener is not None
        node_role.listener.close()
        return TrialMeeting(
            place=str(node_role), missed=f"{rundir.root}: {error.strerror or error}"
        )
    members = Members(
        node_role,
        launch,
        probe,
        {"name": TARGET},
        local_ranks=1,
        on_signal=lambda signum, again: None,
        tell=say,
        warn=refusals.append,
    )
    try:
        members.gather(lambda: bool(refusals))
        members.over(1 if refusals else 0, "; ".join(refusals))
        return TrialMeeting(place=str(node_role), refused="; ".join(refusals))
    except NodesMissing as error:
        members.over(1, str(error))
        return TrialMeeting(place=str(node_role), missed=str(error))
    finally:
        members.close()


def _follow(
    node_role: NodeRole, launch: RankLaunch, rundir: RunDirectory, say: Callable[[str], None]
) -> TrialMeeting:
    say(f"joining the first node at {node_role}")
    deadline = time.monotonic() + node_role.join_s
    why = "nobody answers there"
    while time.monotonic() < deadline:
        try:
            link = MemberLink(socket.create_connection((node_role.host, node_role.port), 5.0))
        except OSError as error:
            why = error.strerror or str(error) or why
            time.sleep(_NAP_S)
            continue
        try:
            answer = introduce(link, rundir, launch, local_ranks=1, target=TARGET)
            if answer.refused:
                return TrialMeeting(place=str(node_role), refused=answer.refused)
            if answer.welcome is not None:
                return _until_over(link, node_role, deadline)
        finally:
            link.close()
        why = answer.why_not
        time.sleep(_NAP_S)
    return TrialMeeting(place=str(node_role), missed=f"the first node was not there ({why})")


def _until_over(link: MemberLink, node_role: NodeRole, deadline: float) -> TrialMeeting:
    while time.monotonic() < deadline:
        message = link.take_one(_LOOK_S) or {}
        if "over" in message:
            missed = str(message.get("said", "")) if message["over"] else ""
            return TrialMeeting(place=str(node_role), missed=missed)
        if not message and link.is_closed:
            break
    return TrialMeeting(place=str(node_role), missed="the first node was gone before all had come")
