"""Reports what happens in a run to the journal, ``run.json`` and the terminal."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Sequence

from supervisor.codes import ActionOutcome, Found, Warned
from supervisor.errors import SupervisorError
from supervisor.events.event import JournalEvent
from supervisor.events.run_events import (
    AttemptStarted,
    GaveUp,
    HangDetected,
    RestartEvent,
    RunFinished,
    RunStarted,
    SignalReceived,
    WorkerExited,
)
from supervisor.events.state_events import (
    CheckpointRejected,
    CheckpointSaved,
    Resumed,
    StateFound,
    WarningEvent,
)
from supervisor.events.step_events import ActionEvent
from supervisor.parent.process.launch import LaunchSpec
from supervisor.parent.process.report_process import write_report_apart
from supervisor.parent.process.rescue_process import Rescued
from supervisor.parent.restarts.exact_retries import ExactRetries
from supervisor.parent.restarts.exits import signal_name
from supervisor.parent.restarts.history import first_made
from supervisor.parent.restarts.restart_policy import Verdict
from supervisor.parent.restarts.restart_receipt import RestartReceipt
from supervisor.parent.run_file import RunFile
from supervisor.parent.taken_over import RunTakenOver
from supervisor.parent.terminal.open_line import OpenLine
from supervisor.parent.terminal.outcome import EXIT_INTERRUPTED, Outcome, RunResult
from supervisor.parent.terminal.summary import Teller, closing_lines, describe_exit, describe_next
from supervisor.parent.terminal.treatment_lines import TreatmentLines, sum_up
from supervisor.parent.watching.hang import HangEvidence
from supervisor.ranks import LEAD_RANK
from supervisor.records import CrashRisk, WorkerExit, WorkerOrder
from supervisor.storage.cases.case_filing import file_cases
from supervisor.storage.cases.case_keeping import keep_memory
from supervisor.storage.cases.cases import CaseLibrary
from supervisor.storage.checkpoints.checkpoints import Checkpoint
from supervisor.storage.journal.journal import JournalMerger, read_journal
from supervisor.storage.journal.treatments import count_treatments
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps.applied_rates import describe_rates


class RunLog:
    """Reports the parent's own events; the methods are in order of time, and never fail.

    Attributes:
        retries: asked for by the worker.
        resumed_attempt: the last one that reached its checkpoint; 0 for none.
    """

    def __init__(self, spec: LaunchSpec, rundir: RunDirectory, journal: JournalMerger) -> None:
        self._spec = spec
        self._rundir = rundir
        self._journal = journal
        self.line = OpenLine()
        self._teller = Teller(quiet=spec.quiet, line=self.line)
        self._treatments = TreatmentLines()
        self._run_file = RunFile(rundir, spec)
        self._first_attempt = 1
        self._told_dry: set[str] = set()
        self.resumed_attempt = 0
        self.has_several_ranks = False
        self.retries = ExactRetries()
        self._restart = RestartReceipt(
            journal.write,
            spec.policy.verify_steps,
            made_at=lambda attempt, step: first_made(rundir.steps(LEAD_RANK), attempt, step),
        )

    def begin(self, attempt: int, world_size: int = 1) -> None:
        """The run, or its continuation from `attempt` on, begins."""
        self._run_file.begin_ranks(world_size)
        self._first_attempt = attempt
        self._run_file.begin()
        self._journal.attempt = attempt
        # What a dead parent left unmerged belongs before this.
        self._journal.merge()
        self._journal.write(
            RunStarted(
                command=self._spec.command,
                target=self._spec.target,
                arguments=self._spec.arguments,
                is_resume=self._spec.is_resume,
            )
        )
        if self._spec.policy.case_library:
            problem = keep_memory(self._rundir)
            if problem is not None:
                self.warn(f"no advice from earlier runs: {problem}", aloud=False)
        self._teller.say(f"run directory: {self._spec.run_dir}")

    def begin_ranks(self, world_size: int, nodes: int) -> None:
        """The nodes of the next attempt are here."""
        self._run_file.begin_ranks(world_size)
        self._teller.say(f"{nodes} nodes are here, with {world_size} ranks")

    def begin_attempt(self, order: WorkerOrder) -> None:
        self._journal.attempt = order.attempt
        self._run_file.begin_attempt(order.attempt)
        self._journal.write(
            AttemptStarted(
                step=order.checkpoint_step,
                checkpoint_step=order.checkpoint_step,
                way=order.way,
                reason=order.reason,
                skip_steps=order.skip_steps,
                lr_factor=order.lr_factor,
                fp32=order.fp32,
                batch_factor=order.batch_factor,
                checkpoint_activations=order.checkpoint_activations,
            )
        )

    def merge(self) -> list[JournalEvent]:
        """Takes over what the worker has written since, and returns it.

        What the worker marked ``aloud`` is told at the terminal too.
        """
        events = self._journal.merge()
        self._restart.saw(events)
        self.retries.saw(events)
        for event in events:
            match event:
                case StateFound(found=Found.SEVERAL_RANKS):
                    self.has_several_ranks = True
                case ActionEvent(outcome=ActionOutcome.WOULD_HAVE):
                    self._tell_dry(event)
                case Resumed():
                    self.resumed_attempt = event.attempt or 0
                case WarningEvent(aloud=True):
                    self._teller.say(f"warning: {event.message}")
            if isinstance(event, StateFound) and event.aloud:
                self._teller.say(event.message or "")
        self._teller.say(*self._treatments.of(events))
        return events

    def _tell_dry(self, event: ActionEvent) -> None:
        """Tells once each treatment that an observing policy would have made."""
        name = event.name
        if name not in self._told_dry:
            self._told_dry.add(name)
            self._teller.say(f"would have done {name} at step {event.step}: {event.reason}")

    def signal_received(self, signum: int, step: int | None, grace_s: float | None) -> None:
        """`grace_s`: until the workers are killed; None: the script handles it, and may train
        on."""
        name = signal_name(signum)
        received = SignalReceived(step=step, signum=signum, name=name, grace_s=grace_s)
        self._journal.write(received)
        if grace_s is None:
            self._teller.say(f"{name}: left to the script, which has a handler for it")
            return
        when = "ending now, this attempt has made no step yet"
        if step is not None:
            when = f"ending at the next step, with a checkpoint, within {grace_s:g} s"
        self._teller.say(f"{name}: {when}; a second signal ends at once")

    def hang_detected(
        self,
        reason: str,
        evidence: HangEvidence,
        *,
        step: int | None,
        since_step_s: float,
        limit_s: float,
    ) -> None:
        self._journal.write(
            HangDetected(
                step=step,
                seconds_since_step=round(since_step_s, 1),
                limit_s=round(limit_s, 1),
                frames=evidence.frames,
                stacks=str(evidence.stacks.relative_to(self._rundir.root)),
                evidence=tuple(filter(None, (reason, evidence.why, *evidence.frames))),
                rank=evidence.rank,
            )
        )

    def worker_exited(
        self, attempt: int, worker_exit: WorkerExit, risk: CrashRisk | None, *, risky: bool
    ) -> None:
        self._journal.write(
            WorkerExited(
                step=worker_exit.last_step,
                cause=worker_exit.cause,
                returncode=worker_exit.returncode,
                signum=worker_exit.signum,
                last_step=worker_exit.last_step,
                evidence=worker_exit.evidence,
                retry=worker_exit.retry,
                risk=None if risk is None else risk.probability,
                risk_reason=None if risk is None else risk.reason,
                risky=None if risk is None else risky,
                onset_step=None if risk is None else risk.onset_step,
                sign=worker_exit.sign,
                rank=worker_exit.rank,
                asked_bytes=worker_exit.asked_bytes,
            )
        )
        self._restart.worker_exited(attempt, worker_exit)
        if worker_exit.retry:
            self._teller.say(describe_exit(attempt, worker_exit))

    def rescued(self, step: int, saved: Rescued | str) -> None:
        """The states that the ranks kept in memory were written, or why they were not."""
        if isinstance(saved, str):
            self.warn(f"the state of step {step} that the ranks kept in memory is lost: {saved}")
            return
        self._journal.write(
            CheckpointSaved(
                step=saved.step,
                path=saved.path,
                reason="parting",
                bytes=saved.bytes,
                seconds=saved.seconds,
            )
        )

    def count_crashes(self, crashes: int) -> None:
        self._run_file.count_crashes(crashes)

    def another_way(self, verdict: Verdict, order: WorkerOrder) -> None:
        """Reports that an attempt did not reach its checkpoint, and that the next takes another
        way."""
        self._teller.say(verdict.reason)
        self.restart(verdict, order)

    def restart(self, verdict: Verdict, order: WorkerOrder) -> None:
        self._journal.write(
            RestartEvent(
                step=order.checkpoint_step,
                next_attempt=order.attempt,
                delay_s=round(verdict.delay_s, 3),
                reason=verdict.reason,
                way=order.way,
                checkpoint_step=order.checkpoint_step,
                skip_steps=order.skip_steps,
                lr_factor=order.lr_factor,
                batch_factor=order.batch_factor,
                checkpoint_activations=order.checkpoint_activations,
            )
        )
        self._teller.say(describe_next(order.attempt, order.checkpoint_step, verdict.delay_s))

    def reject_checkpoint(self, checkpoint: Checkpoint, why: str) -> None:
        rejected = CheckpointRejected(step=checkpoint.step, path=str(checkpoint.path), reason=why)
        self._journal.write(rejected)
        self._teller.say(f"checkpoint of step {checkpoint.step} is not used: {why}")

    def warn(self, message: str, *, aloud: bool = True, found: Warned | None = None) -> None:
        """Writes a warning to the journal, and unless it is a mere detail to the terminal.

        `found`: a code for readers.
        """
        self._journal.write(WarningEvent(message=message, found=found))
        if aloud:
            self._teller.say(f"warning: {message}")

    def left_behind(self, names: Sequence[str], *, completed: bool) -> None:
        """Reports processes that the worker left behind and we ended; a script that completed gets
        a hint."""
        text = f"{len(names)} process(es) that the worker left behind were ended"
        if completed:
            text += f": {', '.join(names[:5])}; `--set keep_background=true` lets them live on"
        self.warn(text, aloud=completed)

    def say(self, line: str) -> None:
        """A line at the terminal that is no event."""
        self._teller.say(line)

    def fall_silent(self) -> None:
        """From now on nothing is written to the run directory: it is another supervisor's."""
        self._journal.abandon()

    def leave(self, taken: RunTakenOver) -> RunResult:
        """The run goes on under another supervisor: says so at the terminal alone."""
        self.fall_silent()
        self._teller.say(str(taken))
        return RunResult(
            exit_code=EXIT_INTERRUPTED,
            state="interrupted",
            run_dir=self._rundir.root,
            summary=(str(taken),),
        )

    def finish(
        self, outcome: Outcome, last_exit: WorkerExit | None, is_forced: Callable[[], bool]
    ) -> RunResult:
        """The run is over: says so everywhere, and has the report written unless `is_forced`."""
        step = last_exit.last_step if last_exit else None
        if outcome.state == "gave_up":
            self._journal.write(GaveUp(step=step, reason=outcome.reason))
        self._journal.write(
            RunFinished(
                step=step,
                state=outcome.state,
                exit_code=outcome.exit_code,
                reason=outcome.reason,
                attempts=self._journal.attempt,
            )
        )
        self._run_file.finish(outcome)
        with contextlib.suppress(SupervisorError, OSError, sqlite3.Error):
            file_cases(self._rundir, CaseLibrary())  # a convenience for later runs
        report = None
        if self._spec.settings.report.enabled:
            report, why = write_report_apart(self._rundir, is_forced)
            if why:
                told = f"the report could not be written: {why}"
                self._journal.write(WarningEvent(message=told))
        lines = closing_lines(
            outcome,
            self._spec.run_dir,
            attempts=self._journal.attempt - self._first_attempt + 1,
            report=report,
            treated=self._treated(),
        )
        self._teller.say(*lines)
        return RunResult(
            exit_code=outcome.exit_code,
            state=outcome.state,
            run_dir=self._rundir.root,
            summary=tuple(lines),
        )

    def _treated(self) -> list[str]:
        """What was done to the training in all attempts: sentences without a full stop."""
        try:
            counted = count_treatments(read_journal(self._rundir.journal))
        except (OSError, SupervisorError):
            return []
        said = (sum_up(counted), describe_rates(self._rundir.steps(LEAD_RANK)))
        return [text for text in said if text]
