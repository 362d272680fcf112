"""A run from its preparation to its report."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from supervisor.codes import OutsideCause
from supervisor.errors import RunDirectoryError, UsageError
from supervisor.parent.attempt_context import POLL_S, AttemptContext
from supervisor.parent.metrics.metrics import Metrics, metrics_for
from supervisor.parent.nodes.member_link import ProbeFile
from supervisor.parent.nodes.members import Members
from supervisor.parent.nodes.node_role import NodeRole
from supervisor.parent.notices.notices import Notices, notices_for
from supervisor.parent.outer_loop import ROOM_WITHIN_S, OuterLoop
from supervisor.parent.prepare import Preparation, prepare
from supervisor.parent.process.agent_process import AgentProcess
from supervisor.parent.process.launch import LaunchSpec
from supervisor.parent.process.process import DEFAULT_COMMAND
from supervisor.parent.process.signals import SignalInbox, signal_numbers
from supervisor.parent.restarts.restart_policy import Backoff
from supervisor.parent.run_file import RunTakenOver
from supervisor.parent.standard_input import StandardInput
from supervisor.parent.terminal.outcome import RunResult
from supervisor.parent.terminal.summary import Teller
from supervisor.parent.watching.device_watch import DeviceWatch
from supervisor.parent.watching.preemption import PreemptionWatch
from supervisor.ranks import ALL_RANKS
from supervisor.step_logs.run_id import name_the_scripts_run
from supervisor.storage.journal.journal import JournalMerger
from supervisor.storage.run.exit_notes import outside_cause
from supervisor.storage.run.handover import Handover
from supervisor.storage.run.lease import STALE_S
from supervisor.storage.run.rundir import note_terminal

_LEASE_LOOK_S = 2.0


class Supervisor:
    """Runs a training to its end in worker processes.

    Call `run` once, in the main thread: there signals are received, and the worker, which asks the
    kernel to die with its parent, needs that thread to stay.
    """

    def __init__(
        self,
        spec: LaunchSpec,
        *,
        worker_command: Sequence[str] = DEFAULT_COMMAND,
        poll_s: float = POLL_S,
        backoff: Backoff | None = None,
        node_role: NodeRole | None = None,
    ) -> None:
        """
        Args:
            spec: of the run.
            worker_command: started instead of the worker, in tests of this loop.
            poll_s: between two looks at the workers.
            backoff: instead of the config's.
            node_role: where the other nodes' parents come; None: this node trains alone.
        """
        self._spec = spec
        self._node_role = node_role
        self._worker_command = worker_command
        self._poll_s = poll_s
        self._backoff = backoff
        self._inbox = SignalInbox(signal_numbers(spec.settings.preemption.signals))

    def run(self) -> RunResult:
        """Returns when the training is over and its report is written.

        Raises:
            UsageError: nothing was started, because it cannot be as asked.
            RunDirectoryError: nothing was started, because another process supervises the run.
        """
        # Before anything is made: a run that is asked to end while it begins can be resumed, too.
        with self._inbox.installed():
            notices, silent = notices_for(
                self._spec.run_dir, self._spec.settings.notify, is_resume=self._spec.is_resume
            )
            metrics, unmeasured = metrics_for(self._spec)
            try:
                warnings = [
                    *([f"{silent}: nothing is sent"] if silent else []),
                    *([f"{unmeasured}: there are no metrics"] if unmeasured else []),
                ]
                return self._run(self._prepared(), notices, metrics, warnings)
            finally:
                metrics.close()

    def _prepared(self) -> Preparation:
        """Prepares the run directory.

        Where the first of several nodes comes back on another machine, it waits until the lease of
        its former self is stale: to be refused would end the others. A resume waits for its disk.
        """
        began_s, is_told = time.monotonic(), self._spec.quiet
        deadline = time.monotonic() + (
            0.0 if self._node_role is None else STALE_S + 2 * _LEASE_LOOK_S
        )
        while True:
            try:
                return prepare(self._spec)
            except RunDirectoryError:
                if time.monotonic() >= deadline or self._inbox.sleep(_LEASE_LOOK_S):
                    raise
            except UsageError as error:
                waits = self._spec.is_resume and outside_cause(error) is OutsideCause.DISK
                if not waits or time.monotonic() - began_s > ROOM_WITHIN_S:
                    raise
                if not is_told:
                    is_told = True
                    Teller(quiet=False).say(f"warning: waiting for the disk: {error}")
                if self._inbox.sleep(_LEASE_LOOK_S):
                    raise

    def _run(
        self, prepared: Preparation, notices: Notices, metrics: Metrics, warnings: Sequence[str]
    ) -> RunResult:
        with prepared.lease, JournalMerger(prepared.rundir, is_parent=True) as journal:
            note_terminal(prepared.rundir)
            name_the_scripts_run(prepared.rundir, self._spec.settings.log, os.environ)
            journal.listeners += (notices.saw, metrics.saw)
            agent = self._agent()
            handover = Handover(1 if agent is None else agent.local_ranks)
            ranks = ALL_RANKS if agent is None else tuple(range(agent.local_ranks))
            run = OuterLoop(self._spec, prepared, journal, self._inbox, ranks)
            members = self._members(run, agent)
            devices = DeviceWatch()
            self._inbox.on_typed = run.run_log.line.typed
            run.context = AttemptContext(
                spec=self._spec,
                rundir=prepared.rundir,
                run_log=run.run_log,
                inbox=self._inbox,
                replica=run.replica,
                pictures=run.pictures,
                notices=notices,
                metrics=metrics,
                preemption=PreemptionWatch(self._spec.settings.preemption),
                devices=devices,
                lease=prepared.lease,
                handover=handover,
                stdin=None if agent is not None else self._stdin(prepared),
                step_log=run.start_step_log(),
                agent=agent,
                members=members,
                worker_command=self._worker_command,
                poll_s=self._poll_s,
            )
            for warning in warnings:
                run.run_log.say(f"warning: {warning}")
            if metrics.url:
                run.run_log.say(f"metrics: {metrics.url}")
            try:
                result = run.to_its_end(self._backoff)
                if members is not None:
                    members.over(result.exit_code, " ".join(result.summary[:1]))
                return result
            except RunTakenOver as taken:
                return run.run_log.leave(taken)
            finally:
                devices.close()
                if members is not None:
                    members.close()
                if agent is not None:
                    agent.close()
                handover.close()
                for problem in (*notices.close(), *metrics.close()):
                    run.run_log.warn(problem)

    def _agent(self) -> AgentProcess | None:
        """Starts what starts the ranks; None if one process is trained in.

        Raises:
            UsageError: the ranks cannot be started as asked.
            RunDirectoryError: it does not start.
        """
        ranks = self._spec.ranks
        if ranks is None:
            return None
        try:
            return AgentProcess(ranks)
        except OSError as error:
            raise RunDirectoryError(f"several ranks: {error.strerror or error}") from error

    def _stdin(self, prepared: Preparation) -> StandardInput:
        limit_mib = self._spec.settings.limits.stdin_mib
        return StandardInput(prepared.rundir, limit_mib, is_resume=self._spec.is_resume)

    def _members(self, run: OuterLoop, agent: AgentProcess | None) -> Members | None:
        """Lets the other nodes join; None if there are none.

        Raises:
            OSError: the run directory cannot be written.
        """
        spec = self._spec
        if self._node_role is None or agent is None or spec.ranks is None:
            return None
        return Members(
            self._node_role,
            spec.ranks,
            ProbeFile(run.rundir),
            spec.for_other_nodes(),
            local_ranks=agent.local_ranks,
            on_signal=self._inbox.note_elsewhere,
            tell=run.run_log.say,
            warn=run.run_log.warn,
        )
