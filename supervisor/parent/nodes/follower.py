"""The outer loop of a node that does not decide: it starts ranks as ordered, and tells of them."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from supervisor.config import load_resolved_config
from supervisor.errors import RunDirectoryError, SupervisorError, UsageError
from supervisor.parent.nodes.member_link import MemberLink, introduce
from supervisor.parent.nodes.node_role import NodeRole
from supervisor.parent.process.agent_process import AgentProcess, RankProcesses
from supervisor.parent.process.launch import LaunchSpec
from supervisor.parent.process.process import DEFAULT_COMMAND, worker_command
from supervisor.parent.process.signals import SignalInbox, signal_name, signal_numbers
from supervisor.parent.terminal.outcome import EXIT_INTERRUPTED
from supervisor.parent.terminal.output import AttemptLog, OpenLine, OutputPump
from supervisor.parent.terminal.summary import Teller
from supervisor.ranks import NodePlace
from supervisor.storage.files.kept_writes import KEPT
from supervisor.storage.run.handover import Handover
from supervisor.storage.run.rundir import RunDirectory, note_terminal
from supervisor.storage.script_files.set_aside import undo_unfinished

_LOOK_S = 0.1
_NAP_S = 0.5
_MEETS_WITHIN_S = 300.0
_NOBODY = "nobody answers there"


class Follower:
    """Joins the first node's parent, and again each time that it has gone.

    Call `run` once, in the main thread, where signals are received.

    Args:
        spec: of the run; the script and its arguments are those that the first node tells.
        node_role: of this node.
    """

    def __init__(self, spec: LaunchSpec, node_role: NodeRole) -> None:
        assert spec.ranks is not None
        self._spec = spec
        self._node_role = node_role
        self._launch = spec.ranks
        self._rundir = RunDirectory(spec.run_dir)
        self._inbox = SignalInbox(signal_numbers(spec.settings.preemption.signals))
        self._line = OpenLine()
        self._teller = Teller(quiet=spec.quiet, line=self._line)
        self._told_signals = 0
        self._heard: list[dict[str, Any]] = []
        self._has_trained = False
        self._handover = Handover(0)

    def run(self) -> int:
        """Returns the exit code when the run has ended, for all nodes the same.

        Raises:
            UsageError: this node cannot take part.
        """
        with self._inbox.installed():
            try:
                agent = AgentProcess(self._launch)
            except OSError as error:
                raise RunDirectoryError(f"several ranks: {error.strerror or error}") from error
            self._handover = Handover(agent.local_ranks)
            try:
                while True:
                    link = self._join(agent)
                    if link is None:
                        return self._asked()
                    try:
                        code = self._serve(link, agent)
                    finally:
                        link.close()
                    if code is not None:
                        return code
                    if self._inbox.asked_by is not None:
                        return self._asked()
                    self._teller.say("the first node is gone: waiting for it to come back")
            finally:
                agent.close()
                self._handover.close()

    def _asked(self) -> int:
        """Returns the exit code after a signal that no first node has answered."""
        if self._has_trained and any(self._rundir.checkpoints.glob("step_*")):
            return EXIT_INTERRUPTED
        return 128 + (self._inbox.asked_by or signal.SIGTERM)

    def _join(self, agent: AgentProcess) -> MemberLink | None:
        """Returns the link to the first node; None if a signal came before.

        Raises:
            SupervisorError: it cannot be joined in time.
            UsageError: it refuses this node.
        """
        deadline = time.monotonic() + self._node_role.join_s
        self._teller.say(f"joining the first node at {self._node_role}")
        why = _NOBODY
        while time.monotonic() < deadline:
            if self._inbox.sleep(_NAP_S if why != _NOBODY else 0.0):
                return None
            try:
                connection = socket.create_connection(
                    (self._node_role.host, self._node_role.port), 5.0
                )
            except OSError as error:
                why = error.strerror or str(error) or _NOBODY
                continue
            link = MemberLink(connection)
            why = self._introduce(link, agent.local_ranks) or ""
            if not why:
                return link
            link.close()
        raise SupervisorError(
            f"{self._node_role}: the first node was not there for "
            f"{self._node_role.join_s:.0f} s ({why})"
        )

    def _introduce(self, link: MemberLink, local_ranks: int) -> str:
        """Returns why it did not come to an answer; empty if this node was welcomed.

        Raises:
            UsageError: it was refused.
        """
        answer = introduce(
            link, self._rundir, self._launch, local_ranks=local_ranks, target=self._spec.name
        )
        if answer.refused:
            raise UsageError(f"run: this node was refused: {answer.refused}")
        if answer.welcome is not None:
            note_terminal(self._rundir)
            self._take(answer.welcome)
        return answer.why_not

    def _take(self, script: Mapping[str, Any]) -> None:
        """Runs what the first node runs, with its settings."""
        settings = load_resolved_config(self._rundir.config_yaml)
        self._spec = replace(
            self._spec,
            kind=script["kind"],
            target=script["target"],
            function=script["function"],
            arguments=tuple(script["arguments"]),
            resume_arguments=tuple(script["resume_arguments"]),
            settings=settings,
        )

    def _serve(self, link: MemberLink, agent: AgentProcess) -> int | None:
        """Obeys until the run is over or the first node is gone; then returns None."""
        while True:
            # One at a time: what came with the order of an attempt is for those who watch it.
            message = self._heard.pop(0) if self._heard else link.take_one(_LOOK_S)
            if message is None and link.is_closed:
                return None
            if message is not None and "over" in message:
                self._teller.say(f"the first node: {message.get('said', 'the run has ended')}")
                return int(message["over"])
            if message is not None and "attempt" in message:
                self._attempt(link, agent, message)
            self._pass_on_signals(link)
            if self._inbox.is_forced:
                return self._asked()

    def _attempt(self, link: MemberLink, agent: AgentProcess, order: Mapping[str, Any]) -> None:
        number, ranks = int(order["attempt"]), [int(rank) for rank in order["ranks"]]
        limit = int(self._spec.settings.limits.log_mib * 2**20)
        self._handover.clear()
        outputs = [
            OutputPump(AttemptLog(self._rundir.log(number, rank), limit), line=self._line)
            for rank in ranks
        ]
        self._has_trained = True
        try:
            processes = RankProcesses(
                agent,
                worker_command(self._spec, number, ranks[0], DEFAULT_COMMAND, self._handover.paths),
                outputs,
                meets_within_s=_MEETS_WITHIN_S,
                place=NodePlace(**order["node"]),
                abandon=lambda: self._called_off(link),
            )
        except Exception as error:
            for output in outputs:
                output.finish()
            link.send(failed=str(error) or type(error).__name__, done=True)
            return
        left = self._watch(link, processes)
        for problem in undo_unfinished(self._rundir, ranks):
            self._teller.say(f"warning: {problem}")
        link.send(done=True, left=left)

    def _watch(self, link: MemberLink, processes: RankProcesses) -> tuple[str, ...]:
        """Returns what the ranks have left behind, when the first node says that all is over."""
        told: set[int] = set()
        keeps = is_over = False
        while not is_over:
            has_ended = processes.wait(0.0 if told == set(processes.ranks) else _LOOK_S)
            self._tell_ends(link, processes, told)
            for message in self._hear(link, _LOOK_S if has_ended else 0.0):
                if "send" in message:
                    processes.send(int(message["send"]), but=message.get("but", ()))
                is_over = is_over or "end" in message
                keeps = bool(message.get("keep", keeps))
            self._pass_on_signals(link)
            is_over = is_over or link.is_closed
        left = processes.stop(keep_others=keeps)
        self._tell_ends(link, processes, told)
        return left

    def _tell_ends(self, link: MemberLink, processes: RankProcesses, told: set[int]) -> None:
        for rank, code in processes.codes.items():
            if rank not in told:
                told.add(rank)
                left = self._handover.left_by(processes.ranks.index(rank))
                link.send(ended=rank, code=code, note=left.note)
                for write in left.writes:
                    KEPT.add(write)

    def _hear(self, link: MemberLink, timeout_s: float) -> list[dict[str, Any]]:
        heard, self._heard = self._heard, []
        return [*heard, *link.take(0.0 if heard else timeout_s)]

    def _called_off(self, link: MemberLink) -> str:
        """Why ranks that are being started are of no use any more."""
        self._pass_on_signals(link)
        self._heard += link.take()
        is_over = link.is_closed or any("end" in message for message in self._heard)
        return "another node is gone" if is_over else ""

    def _pass_on_signals(self, link: MemberLink) -> None:
        for signum in self._inbox.received[self._told_signals :]:
            self._told_signals += 1
            link.send(signal=int(signum))
            self._teller.say(f"{signal_name(signum)}: passed on to the first node")
