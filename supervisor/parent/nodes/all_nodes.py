"""The ranks of all nodes in one attempt, as the first parent watches them."""

from __future__ import annotations

import signal
import time
from collections.abc import Collection, Mapping, Sequence

from supervisor.parent.nodes.members import Member, Members
from supervisor.parent.process.agent_process import AgentProcess, RankProcesses, StartAbandoned
from supervisor.parent.process.family import Family
from supervisor.parent.terminal.output import OutputPump
from supervisor.ranks import NodePlace

_LOCAL_LOOK_S = 0.05
_KILL_S = 10.0
_DONE_S = 30.0
"""For another node to end what its ranks have left behind; longer than that takes."""


class AllNodes:
    """Those of this node through its agent, the others through the parents of their nodes.

    A node that is gone takes its ranks with it: they count as killed (`lost` says why).
    """

    def __init__(
        self,
        members: Members,
        agent: AgentProcess,
        line: Sequence[str],
        outputs: Sequence[OutputPump],
        *,
        attempt: int,
        meets_within_s: float,
    ) -> None:
        """Has all of them started.

        Args:
            members: the other nodes, gathered for this attempt.
            agent: of this node.
            line: a worker's whole command line on this node.
            outputs: one for each rank of this node.
            attempt: its number.
            meets_within_s: for all ranks to be started.

        Raises:
            OSError: those of this node were not started.
        """
        self._members = members
        self._outputs = outputs
        self._local: RankProcesses | None = None
        self._local_ranks = range(members.local_ranks)
        self._told: dict[int, list[int]] = {}
        others = members.taking_part
        count, host = 1 + len(others), members.node_role.host

        def order(port: int) -> None:
            for member in others:
                place = {"number": member.number, "count": count, "host": host, "port": port}
                member.link.send(
                    attempt=attempt, ranks=member.ranks, node={**place, "run_id": members.run_id}
                )

        try:
            self._local = RankProcesses(
                agent,
                line,
                outputs,
                meets_within_s=meets_within_s,
                place=NodePlace(count=count, host=host, run_id=members.run_id),
                on_store=order,
                abandon=self._gone,
            )
        except StartAbandoned:  # by the node that is gone; this one's ranks are not to blame
            self._told = {rank: [signal.SIGKILL] for rank in self._local_ranks}
        self.family: Family = agent.family

    @property
    def signals_sent(self) -> dict[int, list[int]]:
        sent = dict(self._told)
        if self._local is not None:
            sent.update(self._local.signals_sent)
        return sent

    @property
    def lost(self) -> Mapping[int, str]:
        return {
            rank: member.gone
            for member in self._members.taking_part
            if member.gone
            for rank in member.ranks
            if rank not in member.codes
        }

    @property
    def codes(self) -> Mapping[int, int]:
        """Rank → how it ended, of those that have; negative after a signal."""
        found = dict.fromkeys(self.lost, -int(signal.SIGKILL))
        for member in self._members.taking_part:
            found.update(member.codes)
        if self._local is None:
            return {**found, **dict.fromkeys(self._local_ranks, -int(signal.SIGKILL))}
        return {**found, **self._local.codes}

    def wait(self, timeout_s: float) -> bool:
        """Returns whether all have ended, after at most `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while True:
            self._members.pump(0.0)
            left_s = max(0.0, deadline - time.monotonic())
            if self._local is not None and not self._local.wait(min(left_s, _LOCAL_LOOK_S)):
                pass
            elif len(self.codes) == self._members.world_size:
                return True
            else:
                self._members.pump(left_s)
            if time.monotonic() >= deadline:
                return self._all_ended()

    def send(self, signum: int, *, but: Collection[int] = ()) -> None:
        if self._local is not None:
            self._local.send(signum, but=but)
        codes = self.codes
        for member in self._members.taking_part:
            left = [rank for rank in member.ranks if rank not in codes and rank not in but]
            if left:
                member.link.send(send=int(signum), but=list(but))
            for rank in left:
                self._told.setdefault(rank, []).append(int(signum))

    def resize(self) -> None:
        """Tells the ranks of this node that the user's terminal was resized."""
        if self._local is not None:
            self._local.resize()

    def stop(self, *, keep_others: bool = False) -> tuple[str, ...]:
        """Ends all that lives, on all nodes; returns what the ranks of this one have left behind.

        A node that does not say in time that it is done is not counted on any more.
        """
        if not self._all_ended():
            self.send(signal.SIGKILL)
            self.wait(_KILL_S)
        for member in self._members.taking_part:
            member.link.send(end=True, keep=keep_others)
        left: tuple[str, ...] = ()
        if self._local is not None:
            left = self._local.stop(keep_others=keep_others)
        else:
            for output in self._outputs:
                output.finish()
        deadline = time.monotonic() + _DONE_S
        while self._busy() and time.monotonic() < deadline:
            self._members.pump(_LOCAL_LOOK_S)
        for member in self._busy():
            member.link.close()
        return left

    def _busy(self) -> list[Member]:
        others = self._members.taking_part
        return [member for member in others if not member.is_done and not member.link.is_closed]

    def _all_ended(self) -> bool:
        local = self._local is None or self._local.wait(0.0)
        return local and len(self.codes) == self._members.world_size

    def _gone(self) -> str:
        self._members.pump(0.0)
        return next((m.gone for m in self._members.taking_part if m.gone), "")
