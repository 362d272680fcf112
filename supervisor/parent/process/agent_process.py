"""The agent of this node, as the parent sees it, and the ranks that it starts."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from supervisor.errors import UsageError
from supervisor.own_process import IS_RANK, command, worker_environment
from supervisor.parent.process.family import Family
from supervisor.parent.process.process import KILL_S, GuardedProcess
from supervisor.parent.process.side_processes import SavedForDeadRanks, SaveForDeadRanks
from supervisor.parent.process.signals import to_send
from supervisor.parent.terminal.output import OutputPump
from supervisor.ranks import NodePlace, RankLaunch
from supervisor.storage.run.healing_memory import HealingMemory
from supervisor.storage.run.kept_memory import KeptMemory
from supervisor.storage.run.rundir import RunDirectory

_READY_S = 300.0
"""For the agent to import torch; seconds, but minutes from a slow shared disk."""


class AgentProcess:
    """One a run and node, for all attempts: one that has ended is started again (`revive`). Its
    subreaper ends it and all ranks when we are gone.

    Attributes:
        local_ranks: how many ranks it starts on this node.
        kept: memory in which they keep their newest states.
        healing: by which a rank that dies comes back alone; None where all are started again.
    """

    def __init__(self, launch: RankLaunch) -> None:
        """Starts it and waits until it is ready.

        Raises:
            UsageError: it says that the ranks cannot be started as asked.
            OSError: it cannot be started, or ends at once.
        """
        self._launch = launch
        self.healing: HealingMemory | None = None
        self._start()

    def _start(self) -> None:
        orders, self._orders = os.pipe()
        self._reports, reports = os.pipe()
        arguments = json.dumps(dataclasses.asdict(self._launch))
        environment = worker_environment()
        try:
            self._process = GuardedProcess(
                [*command("supervisor.agent.__main__"), arguments],
                stdin=orders,
                stdout=reports,
                stderr=2,
                env={**environment, IS_RANK: "1"},
            )
        finally:
            os.close(orders)
            os.close(reports)
        self._unread = b""
        self.kept = KeptMemory(0)
        self._save_for_dead: SaveForDeadRanks | None = None
        ready = self.next_report(_READY_S)
        if ready is None or "local_ranks" not in ready:
            self.close()
            why = (ready or {}).get("failed")
            if why:
                raise UsageError(f"run: {why}")
            raise OSError(0, "the agent that starts the ranks has ended at once")
        self.local_ranks = int(ready["local_ranks"])
        self.kept = KeptMemory(self.local_ranks)

    def keep_collectives(self) -> HealingMemory | None:
        """Returns `healing`, made if it is not there; None where this system has no such memory."""
        if self.healing is None:
            with contextlib.suppress(OSError):
                self.healing = HealingMemory(self.local_ranks)
        return self.healing

    def revive(self) -> None:
        """Starts it again if it has ended.

        Raises:
            UsageError, OSError: as at first.
        """
        if not self.is_alive:
            self.close()
            self._start()

    @property
    def family(self) -> Family:
        return Family(self._process.pid, self._process.subreaper_pid)

    @property
    def is_alive(self) -> bool:
        return not self._process.wait(0.0)

    @property
    def ended_by(self) -> str:
        """A signal's name, or the exit code."""
        code = self._process.returncode or 0
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"

    def order(self, **what: Any) -> None:
        """Sends one order; an agent that is gone gets none."""
        with contextlib.suppress(OSError):
            os.write(self._orders, json.dumps(what).encode() + b"\n")

    def next_report(self, timeout_s: float) -> dict[str, Any] | None:
        """Returns the agent's next report; None if none came in time, or it is gone."""
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._unread:
            left = max(0.0, deadline - time.monotonic())
            if not select.select([self._reports], [], [], left)[0]:
                return None
            data = os.read(self._reports, 65536)
            if not data:
                return None
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        try:
            found = json.loads(line)
        except ValueError:  # something else was written to the agent's standard output
            return self.next_report(max(0.0, deadline - time.monotonic()))
        return found if isinstance(found, dict) else None

    def start_save_for_dead(self, rundir: RunDirectory) -> None:
        """A rank has failed: what all kept will be written, if it is worth it. May be called again.

        If it cannot be begun, `save_for_dead` says so.
        """
        if self._save_for_dead is None and self.kept.newest_step() is not None:
            with contextlib.suppress(OSError):
                self._save_for_dead = SaveForDeadRanks(rundir, self.kept.places)

    def save_for_dead(self, step: int) -> SavedForDeadRanks | str:
        """Returns what was saved of what the ranks kept at `step`, or why nothing was."""
        if self._save_for_dead is None:
            return "the process that writes it cannot be started"
        process, self._save_for_dead = self._save_for_dead, None
        return process.save(step)

    def stop_save_for_dead(self) -> None:
        """Nothing more is to be saved of these ranks."""
        if self._save_for_dead is not None:
            self._save_for_dead.stop()
            self._save_for_dead = None
        self.kept.clear()

    def kill(self) -> None:
        """Ends the agent at once, and with it all ranks."""
        self._process.send(signal.SIGKILL)

    def close(self) -> None:
        """Ends the agent and all that it has started; gives their memory back."""
        for fd in (self._orders, self._reports):
            with contextlib.suppress(OSError):
                os.close(fd)
        self._process.dismiss(keep=False)
        self.stop_save_for_dead()
        self.kept.close()
        if self.healing is not None:
            self.healing.close()
            self.healing = None


class StartAbandoned(Exception):
    """The ranks of an attempt were not started, because another node is gone."""


class RankProcesses:
    """The ranks of one attempt on this node."""

    def __init__(
        self,
        agent: AgentProcess,
        line: Sequence[str],
        outputs: Sequence[OutputPump],
        *,
        meets_within_s: float,
        place: NodePlace = NodePlace(),  # noqa: B008 (frozen)
        on_store: Callable[[int], None] = lambda port: None,
        abandon: Callable[[], str] = lambda: "",
    ) -> None:
        """Has them started.

        Args:
            agent: that starts them.
            line: a worker's whole command line.
            outputs: one for each local rank.
            meets_within_s: for the other nodes to come.
            place: of this node among all.
            on_store: called with the port of the nodes' store as soon as that is there.
            abandon: asked while the other nodes are waited for: why that is of no use any more.

        Raises:
            OSError: they were not started.
            StartAbandoned: `abandon` said so; the agent was killed.
        """
        self._agent = agent
        self._outputs = outputs
        self._codes: dict[int, int] = {}
        self._starting: int | None = None  # its pid is still that of the dead one
        self._are_killed = False
        self.lost: Mapping[int, str] = {}
        self.signals_sent: dict[int, list[int]] = {}
        agent.revive()
        self.family = agent.family
        me = os.getpid()
        streams = {
            str(rank): [f"/proc/{me}/fd/{output.stdout}", f"/proc/{me}/fd/{output.stderr}"]
            for rank, output in enumerate(outputs)
        }
        agent.stop_save_for_dead()
        # What ranks of several nodes keep lies in the memory of several machines.
        kept = dict(agent.kept.places) if place.count == 1 else {}
        healing = {}
        if kept and agent.healing is not None:
            agent.healing.begin_attempt()
            healing = dict(agent.healing.places)
        agent.order(
            command=list(line),
            streams=streams,
            kept=kept,
            healing=healing,
            node=dataclasses.asdict(place),
        )
        report = self._await_start(meets_within_s, on_store, abandon)
        if "started" not in report:
            raise OSError(0, f"the ranks could not be started: {report.get('failed', report)}")
        self._pids = {int(rank): int(pid) for rank, pid in report["started"].items()}
        for output in outputs:
            output.start(keep_open=True)

    def _await_start(
        self, within_s: float, on_store: Callable[[int], None], abandon: Callable[[], str]
    ) -> dict[str, Any]:
        """Returns the agent's word about the start."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            report = self._agent.next_report(_LOOK_S)
            if report is not None and "store" in report:
                on_store(int(report["store"]))
            elif report is not None and not report.keys() & {"again", "ended"}:
                return report  # not one about ranks of an earlier attempt
            elif not self._agent.is_alive:
                return {"failed": "the agent that starts them has ended"}
            elif abandon():
                self._agent.kill()
                raise StartAbandoned(abandon())
        return {"failed": f"not all of them are there after {within_s:.0f} s"}

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted(self._pids))

    @property
    def codes(self) -> Mapping[int, int]:
        """Rank → how it ended, of those that have; negative after a signal."""
        return self._codes

    def start_alone(self, rank: int, told: Mapping[str, Any]) -> None:
        """Has a dead rank of this node, which is the only one, started again while the others live.

        Args:
            rank: that has ended.
            told: what its new process is told beside what all are told.
        """
        self._agent.order(again=rank, healing=dict(told))
        del self._codes[rank]
        self._starting = rank

    def stand_by(self) -> None:
        """Has a process of this node get ready to become a rank that dies."""
        self._agent.order(standby=True)

    def wait(self, timeout_s: float) -> bool:
        """Returns whether all have ended, after at most `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while len(self._codes) < len(self._pids):
            left = deadline - time.monotonic()
            report = self._agent.next_report(max(0.0, left))
            if report is not None and "again" in report:
                pid = self._pids[int(report["again"])] = int(report["pid"])
                self._starting = None
                if self._are_killed:
                    os.kill(pid, signal.SIGKILL)
            elif report is not None and "ended" in report:
                self._codes[int(report["ended"])] = int(report["code"])
            elif report is not None and "failed" in report:
                self._lose(f"the agent has ended the ranks: {report['failed']}")
            elif report is None and not self._agent.is_alive:
                how = self._agent.ended_by
                self._lose(f"the agent that starts the ranks has ended ({how}), and they with it")
            elif left <= 0.0:
                return False
        return True

    def _lose(self, told: str) -> None:
        """The ranks are gone, by no fault of theirs. Those of an agent are killed with it."""
        left = self._pids.keys() - self._codes.keys()
        self.lost = dict.fromkeys(left, told)
        self._codes.update(dict.fromkeys(left, -signal.SIGKILL))

    def send(self, signum: int, *, but: Collection[int] = ()) -> None:
        self._are_killed |= signum == signal.SIGKILL
        for rank, pid in self._pids.items():
            is_here = rank not in self._codes and rank not in but and rank != self._starting
            sent = None if not is_here else to_send(pid, signum)
            if sent is not None:
                with contextlib.suppress(OSError):
                    os.kill(pid, sent)
                    self.signals_sent.setdefault(rank, []).append(sent)

    def resize(self) -> None:
        """Tells the ranks that the user's terminal was resized."""
        for output in self._outputs:
            output.copy_window_size()
        self.send(signal.SIGWINCH)

    def stop(self, *, keep_others: bool = False) -> tuple[str, ...]:
        """Kills those that live and ends what they have started; returns which."""
        if not self.wait(0.0):
            self.send(signal.SIGKILL)
            self.wait(KILL_S)
        left = () if keep_others else self.family.stop()
        for output in self._outputs:
            output.finish()
        return left


_LOOK_S = 0.1
