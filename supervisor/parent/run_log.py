"""Reports what happens in a run to the journal, ``run.json`` and the terminal."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
from collections.abc import Callable, Sequence

import numpy as np

from supervisor.codes import ActionOutcome, ExitCause, ExitSign, Found, Warned
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
from supervisor.parent.prepare import Preparation
from supervisor.parent.process.launch import LaunchSpec
from supervisor.parent.process.side_processes import SavedForDeadRanks, write_report_apart
from supervisor.parent.process.signals import signal_name
from supervisor.parent.restarts.restart_policy import Verdict
from supervisor.parent.restarts.restart_receipt import RestartReceipt
from supervisor.parent.restarts.starting_point import ExactRetries, first_made
from supervisor.parent.run_file import RunFile, RunTakenOver
from supervisor.parent.terminal.outcome import EXIT_INTERRUPTED, Outcome, RunResult, leave_last_word
from supervisor.parent.terminal.output import OpenLine
from supervisor.parent.terminal.summary import (
    Teller,
    TreatmentLines,
    closing_lines,
    describe_exit,
    describe_next,
)
from supervisor.parent.watching.hang import HangEvidence
from supervisor.ranks import FIRST_RANK
from supervisor.records import CrashRisk, WorkerExit, WorkerOrder
from supervisor.shortfalls import HIGH_LOSS, LASTING, WINDOW, Shortfall, find_shortfalls
from supervisor.storage.cases.case_filing import file_cases, keep_memory
from supervisor.storage.cases.cases import CaseLibrary
from supervisor.storage.checkpoints.checkpoints import Checkpoint
from supervisor.storage.files.kept_writes import KEPT
from supervisor.storage.files.private_files import replaces_names
from supervisor.storage.journal.journal import JournalMerger, read_journal
from supervisor.storage.run.run_state import current_versions, untried_versions
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps.applied_rates import describe_rates
from supervisor.storage.steps.flight_reader import read_group_steps


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
        self._told_dry: set[str] = set()
        self._told: set[Warned] = set()
        self._deletions = 0
        self._next_losses = 3 * WINDOW
        self._coded: list[WarningEvent] = []
        self._told_once: set[str] = set()
        self._refused = {"parent": "", "rank": ""}
        KEPT.on_refused = lambda path, error: self._disk("parent", f"{path}: {error.strerror}")
        KEPT.on_written = lambda: self._disk("parent", "")
        self.resumed_attempt = 0
        self._copies: dict[int | None, int] = {}
        self.has_several_ranks = False
        self.retries = ExactRetries()
        self._restart = RestartReceipt(
            journal.write,
            spec.policy.verify_steps,
            made_at=lambda attempt, step: first_made(rundir.steps(FIRST_RANK), attempt, step),
        )

    def start(self, prepared: Preparation, world_size: int = 1) -> None:
        """The run, or its continuation from an attempt on, begins."""
        attempt = prepared.attempt
        self._run_file.begin_ranks(world_size)
        self._run_file.start()
        self._journal.attempt = attempt - 1 if prepared.died else attempt
        # What a dead parent left unmerged belongs before this.
        self._journal.merge()
        if prepared.died:
            self._tell_death(prepared)
        self._journal.attempt = attempt
        for sentence in prepared.damaged:
            self.warn(sentence, found=Warned.DAMAGED)
        if not replaces_names(self._rundir.root):
            told = "its file system replaces no file by renaming another: files are written in two"
            self.warn(f"{self._rundir.root}: {told} steps, and a kill between them may cost one")
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
        if untried := untried_versions(current_versions()):
            self.warn(untried)

    def _tell_death(self, prepared: Preparation) -> None:
        """The run's last supervisor was killed, or its machine went down."""
        told = f"the supervisor before this one, {prepared.died}, left no note of its end"
        self.warn(f"{told}: it was killed, or its machine went down")
        if prepared.died_in_attempt:
            self._journal.write(
                WorkerExited(
                    cause=ExitCause.KILLED,
                    returncode=None,
                    signum=None,
                    last_step=None,
                    evidence=(f"{told}, and its worker with it",),
                    retry=True,
                    sign=ExitSign.SUPERVISOR_DIED,
                )
            )

    def begin_ranks(self, world_size: int, nodes: int) -> None:
        """The nodes of the next attempt are here."""
        self._run_file.begin_ranks(world_size)
        self._teller.say(f"{nodes} nodes are here, with {world_size} ranks")

    def begin_attempt(self, order: WorkerOrder) -> None:
        self._journal.attempt = order.attempt
        self._copies.clear()
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
                case StateFound(found=Found.COPIES_HELD):
                    self._copies[event.rank] = event.count or 0
                case Resumed():
                    self.resumed_attempt = event.attempt or 0
                case WarningEvent():
                    self._tell_warning(event)
                case CheckpointSaved():
                    self._told.discard(Warned.NOT_SAVED)
            if isinstance(event, StateFound) and event.aloud:
                self._teller.say(event.message or "")
        self._teller.say(*self._treatments.of(events))
        return events

    def _tell_warning(self, event: WarningEvent) -> None:
        """Says it where it was meant to be said; what lasts is said the first time of each."""
        is_new = event.found in {Warned.NOT_SAVED, *LASTING} and event.found not in self._told
        if event.found is not None:
            self._told.add(event.found)
            self._coded.append(event)
        if event.aloud or is_new:
            self._teller.say(f"warning: {event.message}")

    def look_at_directory(self) -> None:
        """Says so once if the run directory was deleted. What comes is written into a new one."""
        if self._journal.deleted > self._deletions:
            self._deletions = self._journal.deleted
            message = f"the run directory {self._spec.run_dir} was removed while the run went on"
            event = WarningEvent(message=message, found=Warned.DIRECTORY_GONE)
            self._tell_warning(event)
            self._journal.write(event)
            self._run_file.begin_attempt(self._journal.attempt)

    @property
    def copies_held(self) -> int:
        """Of the state in memory, by one process of this attempt."""
        return max(self._copies.values(), default=0)

    def look_at_losses(self, last_step: int | None) -> None:
        """Says once that the losses stand far above their best level. Reads all steps, and so only
        when a tenth more have come: ten times as many in all as the run has."""
        if last_step is None or last_step < self._next_losses:
            return
        self._next_losses = last_step + 1 + max(WINDOW, last_step // 10)
        for one in self._shortfalls(self._events()):
            if one.key == HIGH_LOSS:
                self._teller.say(f"warning: {one.sentence}")
                self._next_losses = sys.maxsize

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
                device=worker_exit.device,
            )
        )
        if worker_exit.device is not None:
            self._tell_failing(worker_exit.device)
        self._restart.worker_exited(attempt, worker_exit)
        if worker_exit.retry:
            self._teller.say(describe_exit(attempt, worker_exit))

    def _tell_failing(self, device: str) -> None:
        """From its second failure in the run's life on."""
        exits = [event for event in self._events() if isinstance(event, WorkerExited)]
        times = sum(event.device == device for event in exits)
        if times > 1:
            told = f"the hardware of {device} has failed {times} times in this run: leave it out "
            self.warn(f"{told}(CUDA_VISIBLE_DEVICES)", found=Warned.SUSPECT_HARDWARE)

    def saved_for_dead(self, step: int, saved: SavedForDeadRanks | str) -> None:
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
        known = [one.replayed_step_s for one in self._events() if isinstance(one, Resumed)]
        step_s = next((seconds for seconds in reversed(known) if seconds is not None), None)
        self._teller.say(
            describe_next(order.attempt, order.checkpoint_step, verdict.delay_s, step_s)
        )

    def reject_checkpoint(self, checkpoint: Checkpoint, why: str) -> None:
        rejected = CheckpointRejected(step=checkpoint.step, path=str(checkpoint.path), reason=why)
        self._journal.write(rejected)
        self._teller.say(f"checkpoint of step {checkpoint.step} is not used: {why}")

    def warn(self, message: str, *, aloud: bool = True, found: Warned | None = None) -> None:
        """Writes a warning to the journal, and unless it is a mere detail to the terminal; `found`
        is a code for readers."""
        event = WarningEvent(message=message, aloud=aloud, found=found)
        self._tell_warning(event)
        self._journal.write(event)

    def tell_once(self, message: str) -> None:
        """A warning that is not repeated."""
        if message not in self._told_once:
            self._told_once.add(message)
            self.warn(message)

    def look_at_disk(self, refused: str) -> None:
        """Called every second: tries again what the disk refuses.

        Args:
            refused: what a rank says of its own files; empty if they are written.
        """
        KEPT.try_again()
        self._disk("rank", refused)

    def _disk(self, whose: str, why: str) -> None:
        """Tells once that the disk refuses our files, and once that it takes them again. Any thread
        may call it, so the journal does not hear of it."""
        before = any(self._refused.values())
        self._refused[whose] = why
        if why and not before:
            told = "what is written here is kept in memory and tried again; the training goes on"
            self._teller.say(f"warning: {why}: {told}")
        elif before and not any(self._refused.values()):
            self._teller.say("the disk takes the run's files again: what was kept is written")

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
        KEPT.forget_all()

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
        self.look_at_directory()
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
            self._teller.say("writing the report")
            report, why = write_report_apart(self._rundir, is_forced)
            if why:
                self.warn(f"the report could not be written: {why}")
        if not KEPT.try_again(now=True):
            names = ", ".join(sorted({write.path.name for write in KEPT.kept()}))
            told = f"the disk refused to the end: {names} are not complete"
            self.warn(told, found=Warned.NOT_WRITTEN)
        KEPT.forget_all()
        events = self._events()
        lines = closing_lines(
            outcome,
            self._rundir.root,
            events,
            last_step=step,
            report=report,
            treated=self._rates(),
            shortfalls=self._shortfalls(events),
        )
        self._teller.say(*lines)
        leave_last_word(outcome, lines[0], os.environ)
        return RunResult(
            exit_code=outcome.exit_code,
            state=outcome.state,
            run_dir=self._rundir.root,
            summary=tuple(lines),
        )

    def _events(self) -> list[JournalEvent]:
        """All events of the run, or what this process has told where they cannot be read."""
        events: list[JournalEvent] = []
        with contextlib.suppress(OSError, SupervisorError):
            events = read_journal(self._rundir.journal)
        known = {event.message for event in events if isinstance(event, WarningEvent)}
        return [*events, *(event for event in self._coded if event.message not in known)]

    def _rates(self) -> list[str]:
        """What was done to the learning rate in all attempts: sentences without a full stop."""
        with contextlib.suppress(OSError, SupervisorError):
            return [text for text in [describe_rates(self._rundir.steps(FIRST_RANK))] if text]
        return []

    def _shortfalls(self, events: Sequence[JournalEvent]) -> tuple[Shortfall, ...]:
        try:
            rows = read_group_steps(
                self._rundir, self._run_file.world_size, fields=("step", "loss", "risk", "flags")
            )
            figures = [rows[name] for name in ("step", "loss", "risk")]
        except (OSError, SupervisorError):  # no step yet, or the directory is gone
            figures = [np.zeros(0), np.zeros(0), np.zeros(0)]
        except Exception as error:  # the run ends as it ends, and nobody takes it for looked at
            self.tell_once(f"the losses could not be read: {type(error).__name__}: {error}")
            figures = [np.zeros(0), np.zeros(0), np.zeros(0)]
        return find_shortfalls(events, *figures, alarm=self._spec.policy.alarm_threshold)
