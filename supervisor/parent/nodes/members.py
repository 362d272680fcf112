"""The other nodes' parents, as the first one sees them: who is here, who has gone."""

from __future__ import annotations

import contextlib
import math
import select
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from supervisor.errors import SupervisorError
from supervisor.parent.nodes.member_link import MemberLink, ProbeFile
from supervisor.parent.nodes.node_role import NodeRole
from supervisor.ranks import RankLaunch
from supervisor.storage.run.run_state import current_versions

_INTRODUCES_S = 60.0
"""For a node to read the probe file and to say who it is."""
_LOOK_S = 0.2
_TELL_EVERY_S = 15.0


class NodesMissing(SupervisorError):
    """Too few nodes came in time; with them the run could go on."""


class Member:
    """Another node's parent.

    Attributes:
        link: to it.
        name: for people: its machine and process.
        local_ranks: how many ranks it starts.
        node_rank: its number as given on its command line; -1 if none was.
        number: of the node in the attempt under way, from 1; 0: it takes no part in it.
        ranks: that it starts in that attempt.
        codes, notes: rank → how it ended, and the exit note that it handed over.
        failed: why its ranks could not be started.
        is_done: all that it had started for the attempt has ended.
    """

    def __init__(self, link: MemberLink, hello: Mapping[str, Any]) -> None:
        self.link = link
        self.name = f"{hello.get('host', '?')} (process {hello.get('pid', '?')})"
        self.local_ranks = int(hello["local_ranks"])
        self.node_rank = int(hello["node_rank"])
        self.signals = 0
        self.start(0, ())

    def start(self, number: int, ranks: Sequence[int]) -> None:
        """An attempt begins, in which it starts these ranks."""
        self.number = number
        self.ranks = tuple(ranks)
        self.codes: dict[int, int] = {}
        self.notes: dict[int, dict[str, Any] | None] = {}
        self.failed = ""
        self.is_done = False

    @property
    def gone(self) -> str:
        """Why nothing more is to be expected of its ranks; empty while there is."""
        if self.failed:
            return f"node {self.number}, {self.name}: {self.failed}"
        return f"node {self.number}, {self.name}, is gone" if self.link.is_closed else ""

    def saw(self, message: Mapping[str, Any]) -> None:
        """It reports of its ranks."""
        if "ended" in message:
            self.codes[int(message["ended"])] = int(message["code"])
            self.notes[int(message["ended"])] = message.get("note")
        self.failed = str(message.get("failed", self.failed))
        self.is_done = bool(message.get("done", self.is_done))


class Members:
    """Lets nodes join, and gathers as many as a new attempt needs.

    Attributes:
        node_role: of this node.
        local_ranks: how many ranks it starts.
        run_id: the same for all nodes and attempts; the ranks' TORCHELASTIC_RUN_ID.

    Args:
        node_role: of this node; it listens there.
        launch: how many nodes take part.
        probe: what another node has to see.
        script: what all run, for those that join.
        local_ranks: how many ranks this node starts.
        on_signal: called with a signal that another parent was sent, and whether again.
        tell: called with a line for the terminal.
        warn: called with a warning.
    """

    def __init__(
        self,
        node_role: NodeRole,
        launch: RankLaunch,
        probe: ProbeFile,
        script: Mapping[str, Any],
        *,
        local_ranks: int,
        on_signal: Callable[[int, bool], None],
        tell: Callable[[str], None],
        warn: Callable[[str], None],
    ) -> None:
        self.node_role = node_role
        self.local_ranks = local_ranks
        self.run_id = launch.rdzv_id or uuid.uuid4().hex
        self._launch = launch
        self._probe = probe
        self._script = dict(script)
        self._on_signal = on_signal
        self._tell = tell
        self._warn = warn
        self._strangers: dict[MemberLink, float] = {}
        self._members: list[Member] = []

    @property
    def taking_part(self) -> list[Member]:
        """Those of the attempt under way, in the order of their numbers; also those gone since."""
        return sorted((m for m in self._members if m.number), key=lambda member: member.number)

    @property
    def world_size(self) -> int:
        return self.local_ranks + sum(member.local_ranks for member in self.taking_part)

    def pump(self, timeout_s: float) -> None:
        """Hears what the others say; waits for something at most so long."""
        listener = self.node_role.listener
        assert listener is not None, "only the first parent has members"
        heard: list[Any] = [m.link for m in self._members if not m.link.is_closed]
        ready = select.select([listener, *heard, *self._strangers], [], [], timeout_s)[0]
        if listener in ready:
            self._accept()
        for member in self._members:  # first: who comes again is a stranger
            if member.link in ready:
                for message in member.link.take():
                    self._hear(member, message)
        for link in [link for link in self._strangers if link in ready]:
            self._hear_stranger(link)
        for link, since_s in list(self._strangers.items()):
            if link.is_closed or time.monotonic() - since_s > _INTRODUCES_S:
                del self._strangers[link]
                link.close()
        for member in [m for m in self._members if m.link.is_closed]:
            member.link.close()
            if not member.number:  # it takes no part in the attempt under way
                self._members.remove(member)

    def gather(self, look: Callable[[], bool], ranks: int | None = None) -> bool:
        """Waits for the nodes of the next attempt, and gives them their numbers and ranks.

        Args:
            look: called again and again meanwhile; True ends the waiting.
            ranks: as many as saved the checkpoint: with these it is not waited for more nodes,
                because others go on from it only approximately.

        Returns:
            Whether they are there.

        Raises:
            NodesMissing: too few came in time.
        """
        for member in self.taking_part:
            member.number = 0
        began_s, told_s = time.monotonic(), -math.inf
        changed_s, count = began_s, 0
        while True:
            self.pump(_LOOK_S if math.isfinite(told_s) else 0.0)
            now_s = time.monotonic()
            if 1 + len(self._members) != count:
                changed_s, count = now_s, 1 + len(self._members)
            chosen = self._chosen(
                ranks, is_last_call=now_s - changed_s >= self.node_role.last_call_s
            )
            if chosen is not None:
                self._number(chosen)
                return True
            if now_s - began_s > self.node_role.join_s:
                raise NodesMissing(self._too_few(count))
            if now_s - told_s >= _TELL_EVERY_S:
                told_s = now_s
                wanted = self._launch.nnodes
                self._tell(
                    f"waiting at {self.node_role} for the other nodes: {count} of {wanted} here"
                )
            if look():
                return False

    def _chosen(self, ranks: int | None, *, is_last_call: bool) -> list[Member] | None:
        """Returns those that take part in the next attempt; None if it cannot begin yet."""
        place = {id(member): index for index, member in enumerate(self._members)}
        here = sorted(self._members, key=lambda member: (member.node_rank, place[id(member)]))
        count, launch = 1 + len(here), self._launch
        if count >= launch.most_nodes:
            return here
        for last in range(len(here) + 1) if ranks is not None else ():
            if self.local_ranks + sum(member.local_ranks for member in here[:last]) == ranks:
                return here[:last]
        return here if is_last_call and count >= launch.least_nodes else None

    def note_of(self, rank: int) -> dict[str, Any] | None:
        """Returns the fields of the exit note that a rank of another node has handed over."""
        notes = (member.notes.get(rank) for member in self._members)
        return next(filter(None, notes), None)

    def over(self, code: int, said: str) -> None:
        """Tells all that the run has ended."""
        for member in self._members:
            member.link.send(over=code, said=said)

    def close(self) -> None:
        if self.node_role.listener is not None:
            self.node_role.listener.close()
        for link in (*(member.link for member in self._members), *self._strangers):
            link.close()
        with contextlib.suppress(OSError):
            self._probe.remove()

    def _too_few(self, count: int) -> str:
        return (
            f"{count} of {self._launch.nnodes} nodes are here after {self.node_role.join_s:.0f} s: "
            "start the same command on the others, then continue the run"
        )

    def _number(self, chosen: Sequence[Member]) -> None:
        first = self.local_ranks
        for number, member in enumerate(chosen, start=1):
            member.start(number, range(first, first + member.local_ranks))
            first += member.local_ranks

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            connection, _ = self.node_role.listener.accept()  # type: ignore[union-attr]
            link = MemberLink(connection)
            link.send(probe=self._probe.name)
            self._strangers[link] = time.monotonic()

    def _hear_stranger(self, link: MemberLink) -> None:
        for hello in link.take():
            why = self._refusal(hello)
            if why:
                link.send(refused=why)
                self._strangers[link] = -_INTRODUCES_S  # closed as soon as it is told
                if hello.get("secret") is None or hello.get("secret") == self._probe.secret:
                    self._warn(f"a node was refused: {hello.get('host', '?')}: {why}")
                return
            if self._is_full(hello):
                link.send(full=f"all {self._launch.most_nodes} nodes are here already")
                self._strangers[link] = -_INTRODUCES_S
                return
            del self._strangers[link]
            member = Member(link, hello)
            self._replace(member)
            self._members.append(member)
            link.send(welcome=self._script)
            return

    def _replace(self, newer: Member) -> None:
        """A node that comes again, before it was noticed that it had gone."""
        for member in self._members:
            if newer.node_rank >= 0 and member.node_rank == newer.node_rank:
                member.link.close()

    def _refusal(self, hello: Mapping[str, Any]) -> str:
        """Returns why a node cannot take part; empty if it can."""
        if hello.get("secret") != self._probe.secret:
            return (
                "it does not see the same run directory: --run-dir has to be one folder on a disk "
                f"that all nodes share (no {self._probe.name} there)"
            )
        mine, other = current_versions(), hello.get("versions")
        if other != mine:
            return f"it has {_versions(other)}, and the first node {_versions(mine)}"
        if hello.get("rdzv_id") != self._launch.rdzv_id:
            return f"--rdzv-id {hello.get('rdzv_id')}: not the first node's, {self._launch.rdzv_id}"
        if hello.get("target") != self._script["name"]:
            return f"it runs {hello.get('target')}, and the first node {self._script['name']}"
        numbered = self._launch.node_rank >= 0
        if numbered != (hello.get("node_rank", -1) >= 0):
            return "--node-rank: give it on all nodes, or on none"
        if hello.get("node_rank") == 0:
            return "--node-rank 0: the first node has it already"
        return ""

    def _is_full(self, hello: Mapping[str, Any]) -> bool:
        """Whether all are here; a node that has gone without a word counts for a while."""
        others = [m for m in self._members if not m.link.is_closed]
        comes_again = any(0 <= m.node_rank == hello["node_rank"] for m in others)
        return 1 + len(others) >= self._launch.most_nodes and not comes_again

    def _hear(self, member: Member, message: Mapping[str, Any]) -> None:
        if "signal" in message:
            member.signals += 1
            self._on_signal(int(message["signal"]), member.signals > 1)
        else:
            member.saw(message)


def _versions(versions: object) -> str:
    found = versions if isinstance(versions, dict) else {}
    return ", ".join(f"{name} {value}" for name, value in found.items()) or "unknown ones"
