"""The outer loop: attempt after attempt until the run has ended."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from errno import ENOENT

from supervisor.codes import OutsideCause, Warned
from supervisor.errors import SupervisorError
from supervisor.parent.attempt import Attempt
from supervisor.parent.attempt_context import AttemptContext
from supervisor.parent.nodes.members import NodesMissing
from supervisor.parent.prepare import Preparation
from supervisor.parent.process.launch import LaunchSpec
from supervisor.parent.process.side_processes import LivePictures, StepLogProcess, start_step_log
from supervisor.parent.process.signals import SignalInbox
from supervisor.parent.restarts import starting_point
from supervisor.parent.restarts.blame import judge_group
from supervisor.parent.restarts.exits import ProcessEnding, with_device_findings
from supervisor.parent.restarts.restart_policy import (
    START,
    Backoff,
    RestartPolicy,
    Verdict,
    WaysBack,
    may_be_sick,
)
from supervisor.parent.restarts.restart_policy import describe as describe_way
from supervisor.parent.restarts.starting_point import (
    StartingPoint,
    failures_seen,
    group_history,
    may_be_in_the_way,
    set_leftovers_aside,
)
from supervisor.parent.run_file import check_lease
from supervisor.parent.run_log import RunLog
from supervisor.parent.terminal import outcome as outcomes
from supervisor.parent.terminal.outcome import Outcome, RunResult
from supervisor.parent.watching.replica import Replica
from supervisor.records import REPLAY, ExitCause, WorkerExit, WorkerOrder
from supervisor.storage.checkpoints.checkpoints import CheckpointRing
from supervisor.storage.checkpoints.parts import ranks_of
from supervisor.storage.damaged_files import set_steps_aside
from supervisor.storage.files.kept_writes import KEPT
from supervisor.storage.journal.events import read_journal
from supervisor.storage.journal.journal import JournalMerger
from supervisor.storage.run.exit_notes import outside_cause
from supervisor.storage.run.run_state import save_order
from supervisor.storage.script_files.set_aside import undo_unfinished

_MEANT = (ExitCause.COMPLETED, ExitCause.INTERRUPTED, ExitCause.PREEMPTED)


ROOM_WITHIN_S = 600.0
"""For the disk to take an attempt's order: a person or a job that cleans up needs minutes."""
_ROOM_LOOK_S = 1.0


class NoRoom(SupervisorError):
    """The disk did not take the order of an attempt in time."""


class OuterLoop:
    """Attempt after attempt, from a first order to an outcome."""

    context: AttemptContext

    def __init__(
        self,
        spec: LaunchSpec,
        prepared: Preparation,
        journal: JournalMerger,
        inbox: SignalInbox,
        ranks: Sequence[int],
    ) -> None:
        self._spec = spec
        self._ranks = ranks
        self._prepared = prepared
        self.rundir = prepared.rundir
        self._inbox = inbox
        self.run_log = RunLog(spec, prepared.rundir, journal)
        self._last_exit: WorkerExit | None = None
        self._ring = CheckpointRing(
            self.rundir.checkpoints,
            spec.settings.checkpoint,
            on_rejected=self.run_log.reject_checkpoint,
        )
        self.pictures = LivePictures(self.rundir, spec.settings.report.picture_every_steps)
        self.replica = Replica(spec.settings, spec.policy, on_failure=self.run_log.warn)
        restart = spec.settings.restart
        self._ways = WaysBack(
            spec.settings.fast_forward,
            kills=restart.crash_limit,
            few_steps=restart.progress_steps,
            way=prepared.way,
        )
        self._is_short = False
        self._furthest = -1
        self._began_again_after: int | None = None
        self._needs_loading = False

    def to_its_end(self, backoff: Backoff | None) -> RunResult:
        start = self._first_start()
        self.run_log.start(self._prepared, len(self._ranks))
        if warning := self._ring.room_warning():
            self.run_log.warn(warning)
        restarts = RestartPolicy(
            self._spec.settings.restart,
            first_step=0 if start.step is None else start.step + 1,
            backoff=backoff,
        )
        try:
            outcome = self._attempts(self._first_order(start), restarts)
        except (NodesMissing, NoRoom) as missing:
            outcome = outcomes.waiting(str(missing), has_checkpoint=bool(self._ring.checkpoints()))
        except (SupervisorError, OSError) as error:
            outcome = outcomes.gave_up(str(error))
            if outside_cause(error) is OutsideCause.DISK:
                has_checkpoint = bool(self._ring.checkpoints())
                outcome = outcomes.waiting(str(error), has_checkpoint=has_checkpoint)
        self.pictures.stop()
        if self.context.step_log is not None and (problem := self.context.step_log.stop()):
            self.run_log.warn(problem)
        check_lease(self._prepared.lease)
        return self.run_log.finish(outcome, self._last_exit, lambda: self._inbox.is_forced)

    def _attempts(self, order: WorkerOrder, restarts: RestartPolicy) -> Outcome:
        """The loop: launch, watch, judge_group, then again or not."""
        while True:
            if not self._all_nodes_are_here(order):
                return self._asked_to_end("asked to end before all nodes had come")
            failures, trained_s = failures_seen(read_journal(self.rundir.journal))
            order = replace(order, failures=failures, trained_s=trained_s)
            if not self._give_order(order):
                return self._asked_to_end("asked to end while the disk had no room")
            stdin = self.context.stdin
            if stdin is not None and (no_input := stdin.refused()):
                return outcomes.gave_up(no_input)
            worker_exit = self._attempt(order)
            check_lease(self._prepared.lease)
            if self._inbox.asked_by is not None:
                return self._outcome(worker_exit)
            another = self._another_way(order, worker_exit)
            if another is not None:
                order = another
                continue
            again = self.run_log.retries.order(order, worker_exit, self._ring)
            if again is not None:
                order = again
                self.run_log.restart(Verdict(again=True, reason=worker_exit.evidence[0]), order)
                continue
            if not worker_exit.retry:
                return self._outcome(worker_exit)
            if self.run_log.has_several_ranks:
                return outcomes.gave_up("one of several ranks failed: start all of them again")
            verdict = restarts.decide(
                worker_exit,
                risky=self.replica.is_risky,
                finite=self.replica.is_finite,
                copies=self.run_log.copies_held,
            )
            self.run_log.count_crashes(restarts.crashes)
            if not verdict.again:
                return outcomes.gave_up(verdict.reason)
            following = self._next_order(order.attempt + 1, verdict)
            if following.checkpoint_step is None and may_be_in_the_way(order, worker_exit):
                self._set_leftovers_aside(order.attempt)
            order = following
            self.run_log.restart(verdict, order)
            if self._inbox.sleep(verdict.delay_s):
                return self._outcome(worker_exit)

    def _all_nodes_are_here(self, order: WorkerOrder) -> bool:
        """Waits for the other nodes, if there are any; False if the run is asked to end meanwhile.

        Raises:
            NodesMissing: too few came.
            CheckpointError: the order's checkpoint cannot be read.
        """
        members = self.context.members
        if members is None:
            return True

        def look() -> bool:
            check_lease(self._prepared.lease)
            return self._inbox.asked_by is not None

        step = order.checkpoint_step
        ranks = None if step is None else ranks_of(self._ring.get(step))
        if not members.gather(look, ranks):
            return False
        self._ranks = tuple(range(members.world_size))
        self.run_log.begin_ranks(members.world_size, 1 + len(members.taking_part))
        return True

    def _give_order(self, order: WorkerOrder) -> bool:
        """Writes an attempt's order, as soon as the disk takes it; False if the run is asked to
        end meanwhile.

        An attempt that cannot read and write its replay log would be no resume, so it waits.

        Raises:
            NoRoom: the disk refuses it for too long.
        """
        began_s = time.monotonic()
        while True:
            check_lease(self._prepared.lease)
            try:
                if not self.rundir.config_yaml.exists():
                    raise FileNotFoundError(ENOENT, "the run directory is gone")
                save_order(self.rundir, order)
                break
            except OSError as error:
                told = f"{self.rundir.root}: {error.strerror}: attempt {order.attempt} waits"
                if time.monotonic() - began_s > ROOM_WITHIN_S:
                    raise NoRoom(f"{told} no longer: make room there, and resume") from error
                self.run_log.tell_once(f"{told} for it, at most {ROOM_WITHIN_S / 60:.0f} minutes")
            if self._inbox.sleep(_ROOM_LOOK_S):
                return False
        KEPT.try_again(now=True)
        for rank in self._ranks:
            KEPT.forget(self.rundir.steps(rank))  # the next attempt's rows take their place
        for sentence in set_steps_aside(self.rundir):
            self.run_log.warn(sentence, found=Warned.DAMAGED)
        return True

    def _attempt(self, order: WorkerOrder) -> WorkerExit:
        self.run_log.begin_attempt(order)
        self.replica.restart(group_history(self.rundir, self._ranks, order.checkpoint_step))
        self.context.devices.begin_attempt()
        endings = Attempt(self.context, order.attempt, self._ranks, order.checkpoint_step).run()
        for problem in undo_unfinished(self.rundir, self._ranks[: self.context.local_ranks]):
            self.run_log.warn(problem)
        worker_exit = judge_group(endings)
        if worker_exit.cause not in _MEANT:
            worker_exit = with_device_findings(worker_exit, self.context.devices.findings())
        self._last_exit = worker_exit
        last_step = -1 if worker_exit.last_step is None else worker_exit.last_step
        self._furthest = max(self._furthest, last_step)
        self._is_short = self._ended_short(order, endings, worker_exit)
        self._needs_loading = any(
            ending.note is not None and ending.note.kind == "loading" for ending in endings
        )
        self.run_log.worker_exited(
            order.attempt, worker_exit, self.replica.risk, risky=self.replica.is_risky
        )
        self._save_kept(worker_exit)
        return worker_exit

    def _set_leftovers_aside(self, attempt: int) -> None:
        """Files that an attempt which was killed had half written may be why the script fails."""
        ranks = self._ranks[: self.context.local_ranks]
        try:
            count, place = set_leftovers_aside(self.rundir, ranks, attempt)
        except OSError as error:
            self.run_log.warn(f"files of earlier attempts stay where they are: {error}")
            return
        if place is not None:
            self.run_log.warn(
                f"the script fails before its first step with what earlier attempts left: "
                f"{count} file(s) that they made are now in {place}"
            )

    def _save_kept(self, worker_exit: WorkerExit) -> None:
        """Has the state written that all ranks kept in memory, if it is newer than what is on disk
        and healthy."""
        agent = self.context.agent
        if agent is None:
            return
        step = agent.kept.newest_step()
        newest = max((found.step for found in self._ring.checkpoints()), default=0)
        is_sick = may_be_sick(worker_exit.cause, risky=self.replica.is_risky)
        has_failed = worker_exit.cause is not ExitCause.COMPLETED
        if step is not None and step > newest and has_failed and not is_sick:
            agent.start_save_for_dead(self.rundir)
            self.run_log.saved_for_dead(step, agent.save_for_dead(step))
        agent.stop_save_for_dead()

    def _ended_short(
        self, order: WorkerOrder, endings: Sequence[ProcessEnding], worker_exit: WorkerExit
    ) -> bool:
        """Whether an attempt ended on its way to its checkpoint; not if it ended before it set
        out."""
        if order.checkpoint_step is None or worker_exit.cause in _MEANT:
            return False
        has_stepped = any(ending.last_step is not None for ending in endings)
        if has_stepped or self.run_log.resumed_attempt == order.attempt:
            self._ways.arrived()
            return False
        return all(ending.note is None or ending.note.replaying for ending in endings)

    def _another_way(self, order: WorkerOrder, worker_exit: WorkerExit) -> WorkerOrder | None:
        """Returns the next order after an attempt that ended short; None if it is to be judged."""
        step = order.checkpoint_step
        if not self._is_short or step is None:
            return None
        needs_loading = self._needs_loading and order.way == REPLAY
        way = self._ways.load_all() if needs_loading else self._ways.next(worker_exit, step)
        if way is None:
            return None
        reason = describe_way(order.attempt, worker_exit, step, way)
        is_start = way == START
        if is_start:
            self._began_again_after = self._furthest
        following = replace(
            order,
            attempt=order.attempt + 1,
            checkpoint_step=None if is_start else step,
            reason="from the start: no other way led back" if is_start else order.reason,
            way=self._ways.way,
        )
        delay_s = self._spec.settings.restart.backoff_s if way == order.way else 0.0
        self.run_log.another_way(Verdict(again=True, reason=reason, delay_s=delay_s), following)
        return None if self._inbox.sleep(delay_s) else following

    def _outcome(self, worker_exit: WorkerExit) -> Outcome:
        asked_by = self._inbox.asked_by
        has_checkpoint = bool(self._ring.checkpoints())
        if worker_exit.cause is ExitCause.COMPLETED and self._began_again_after is not None:
            told = (
                f"it began from nothing again, though it had come to step {self._began_again_after}"
            )
            if worker_exit.last_step is None:
                return outcomes.gave_up(f"{told}, and ended without a step: start it anew")
            self.run_log.warn(told, found=Warned.BEGAN_AGAIN)
        if asked_by is not None and worker_exit.cause is not ExitCause.COMPLETED:
            return self._asked_to_end(*worker_exit.evidence, "asked to end")
        return outcomes.of_final_exit(
            worker_exit, has_checkpoint=has_checkpoint, asked_by=asked_by or worker_exit.stopped_by
        )

    def _asked_to_end(self, *reasons: str) -> Outcome:
        return outcomes.interrupted(
            reasons[0],
            has_checkpoint=bool(self._ring.checkpoints()),
            asked_by=self._inbox.asked_by,
        )

    def _first_start(self) -> StartingPoint:
        if self._spec.resume_from is not None:
            return starting_point.as_asked(self._ring, self._spec.resume_from)
        if self._spec.is_resume:
            start = "stable" if self._prepared.was_sick else "latest"
            return starting_point.after_failure(
                self._ring, start, onset_step=self._prepared.onset_step
            )
        return StartingPoint(step=None, reason="a new run")

    def _first_order(self, start: StartingPoint) -> WorkerOrder:
        self._leave_behind(start)
        careful = self._spec.is_resume and self._prepared.was_numerical
        restart = self._spec.settings.restart
        return WorkerOrder(
            attempt=self._prepared.attempt,
            checkpoint_step=start.step,
            reason=start.reason,
            way=self._ways.way,
            lr_factor=restart.careful_lr_factor if careful else 1.0,
            careful_steps=restart.careful_steps if careful else 0,
        )

    def _next_order(self, attempt: int, verdict: Verdict) -> WorkerOrder:
        risk = self.replica.risk
        onset_step = risk.onset_step if risk is not None and risk.onset_step >= 0 else None
        start = starting_point.after_failure(
            self._ring, verdict.start, onset_step=onset_step, before_step=verdict.before_step
        )
        self._leave_behind(start)
        return replace(
            verdict.order,
            attempt=attempt,
            checkpoint_step=start.step,
            reason=start.reason,
            way=self._ways.way,
        )

    def _leave_behind(self, start: StartingPoint) -> None:
        """Removes checkpoints later than an older start: they hold what is to be left behind."""
        if not start.is_older:
            return
        removed = self._ring.discard_after(-1 if start.step is None else start.step)
        if removed:
            steps = ", ".join(str(checkpoint.step) for checkpoint in removed)
            self.run_log.warn(f"checkpoints after the new start were removed: steps {steps}")

    def start_step_log(self) -> StepLogProcess | None:
        """Starts what writes the steps into TensorBoard and the like, if a config asks for it."""
        try:
            return start_step_log(self.rundir, self._spec.settings.log)
        except OSError as error:
            self.run_log.warn(f"the steps are not logged: {error}")
            return None
