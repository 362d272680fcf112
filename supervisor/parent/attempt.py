"""One attempt: a worker, or several ranks, from the start to the end, watched."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from supervisor.codes import Warned
from supervisor.held_memory import count_oom_kills
from supervisor.parent.healing import RankHealing
from supervisor.parent.metrics.metrics import Metrics
from supervisor.parent.nodes.all_nodes import AllNodes
from supervisor.parent.nodes.members import Members
from supervisor.parent.notices.notices import Notices
from supervisor.parent.process.agent_process import AgentProcess, RankProcesses
from supervisor.parent.process.family import sample_memory
from supervisor.parent.process.launch import LaunchSpec
from supervisor.parent.process.process import (
    DEFAULT_COMMAND,
    Processes,
    WorkerProcess,
    worker_command,
)
from supervisor.parent.process.side_processes import LivePictures, StepLogProcess
from supervisor.parent.process.signals import (
    GRACIOUS,
    TOGETHER_S,
    Request,
    SignalInbox,
    signal_numbers,
)
from supervisor.parent.restarts.exits import ProcessEnding, classify
from supervisor.parent.run_file import check_lease
from supervisor.parent.run_log import RunLog
from supervisor.parent.standard_input import StandardInput, not_for_ranks
from supervisor.parent.terminal.output import AttemptLog, OutputPump, read_tail
from supervisor.parent.watching import hang
from supervisor.parent.watching.device_watch import DeviceWatch
from supervisor.parent.watching.place_of_silence import Patience
from supervisor.parent.watching.preemption import PreemptionWatch
from supervisor.parent.watching.rank_watch import GroupFeed, RankWatch
from supervisor.parent.watching.replica import Replica
from supervisor.parent.watching.watchdog import (
    RANKS_AGAIN_S,
    WARM_UP_S,
    KnownStarts,
    Unkillable,
    Watchdog,
)
from supervisor.ranks import one_node
from supervisor.records import ExitCause
from supervisor.storage.files.kept_writes import KEPT
from supervisor.storage.run.exit_notes import FAILED, ExitNote, load_exit_note, note_of
from supervisor.storage.run.handover import Handover, Left
from supervisor.storage.run.lease import Lease
from supervisor.storage.run.mailboxes import arrived_at, describe_replay, replayed_steps
from supervisor.storage.run.run_state import load_order
from supervisor.storage.run.rundir import RunDirectory

POLL_S = 0.2
LAST_WORDS_S = 5.0
"""After a rank has failed: for the others to save what they have and to say how they ended."""
MEETS_WITHIN_S = 600.0
"""For all nodes to come; torch's own default for a rendezvous."""
_LAST_OUTPUT = 16384
"""Bytes: NCCL's watchdog writes stacks of C++ behind what it has found."""
_SLOW_LOOK_S = 1.0
_TELL_AFTER_S, _TELL_EVERY_S = 2.0, 15.0
"""Of a fast-forward, and of ranks that others wait for; shorter waits nobody asks about."""

_NAMED = 8
"""Most ranks that a line names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptContext:
    """What all attempts of a run share."""

    spec: LaunchSpec
    rundir: RunDirectory
    run_log: RunLog
    inbox: SignalInbox
    replica: Replica
    pictures: LivePictures
    notices: Notices
    metrics: Metrics
    preemption: PreemptionWatch
    lease: Lease
    devices: DeviceWatch
    step_log: StepLogProcess | None = None
    agent: AgentProcess | None = None
    members: Members | None = None
    stdin: StandardInput | None = None
    handover: Handover = field(default_factory=lambda: Handover(0))
    starts: KnownStarts = field(default_factory=KnownStarts)
    worker_command: Sequence[str] = DEFAULT_COMMAND
    poll_s: float = POLL_S

    @property
    def local_ranks(self) -> int:
        """How many of the ranks, from the first on, are this node's."""
        return 1 if self.agent is None else self.agent.local_ranks


class Attempt:
    """Starts the workers and watches them: steps, life, memory, signals to us, output.

    If a part of the watching fails, that is written to the journal once, and the others go on.
    """

    def __init__(
        self,
        context: AttemptContext,
        number: int,
        ranks: Sequence[int],
        target: int | None = None,
    ) -> None:
        """
        Args:
            context: what all attempts share.
            number: of the attempt.
            ranks: that are started and watched here.
            target: step of the checkpoint that a fast-forward goes to; None without one.
        """
        self._s = context
        self._number = number
        self._watches = [RankWatch(context.rundir, rank) for rank in ranks]
        self._first = self._watches[0]
        self._target = target
        self._began = time.time()
        self._tell_at_s = time.monotonic() + _TELL_AFTER_S
        self._replay_from: tuple[int, float] | None = None
        self._feed = GroupFeed(self._watches)
        self._memory = ""
        self._broken_since_s: float | None = None
        self._hang: str | None = None
        self._hung_rank: int | None = None
        self._patience = Patience(context.rundir, number, ranks, context.run_log.say)
        self._is_executed = False
        self._background = ""
        self._kill_at_s: float | None = None
        self._ends_by_s: float | None = None
        self._slow_look_s = 0.0
        self._signs_of_life = 0
        self._reported: set[str] = set()
        self._healing: RankHealing | None = None

    def run(self) -> list[ProcessEnding]:
        """Returns what is known of each rank when all of them and their descendants have ended.

        Raises:
            OSError: they could not be started.
            RunTakenOver: another host has the run now; the workers were killed.
        """
        s = self._s
        limit = int(s.spec.settings.limits.log_mib * 2**20)
        s.handover.clear()
        if s.stdin is not None:
            s.stdin.begin_attempt()
        oom_kills = count_oom_kills()
        outputs = [
            OutputPump(
                AttemptLog(s.rundir.log(self._number, watch.rank), limit), line=s.run_log.line
            )
            for watch in self._watches[: s.local_ranks]
        ]
        try:
            process = self._start(outputs)
        except OSError:
            for output in outputs:
                output.finish()
            if s.stdin is not None:
                s.stdin.end_attempt()
            raise
        watchdog = Watchdog(
            s.spec.settings.watchdog,
            started_s=time.monotonic(),
            known_start_s=s.starts.longest_silence_s,
            warm_up_s=RANKS_AGAIN_S if self._is_again else WARM_UP_S,
        )
        unkillable = Unkillable()
        try:
            while not process.wait(s.poll_s):
                check_lease(s.lease)
                self._look(process, watchdog, outputs)
                if unkillable.is_there(process.signals_sent.values(), time.monotonic()):
                    s.run_log.warn("a process does not end after SIGKILL: it is left running")
                    break
        finally:
            if s.lease.taken_by is not None:
                s.run_log.fall_silent()
            done = len(process.codes) == len(self._watches) and self._is_completed()
            if done and not s.spec.settings.keep_background:
                self._background = self._guarded("background", lambda: self._ends_itself(process))
            left = process.stop(keep_others=done and s.spec.settings.keep_background)
            if self._healing is not None and self._healing.is_waiting:
                self._guarded("healing", lambda: self._heal(process, watchdog, time.monotonic()))
            watchdog.saw_steps(self._guarded("steps", self._take_steps) or 0, time.monotonic())
            self._guarded("handover", self._take_over)
            self._guarded("journal", s.run_log.merge)
            self._guarded("note", self._tell_executed)
            self._feed.close()
            if s.stdin is not None:
                s.stdin.end_attempt()
            s.starts.attempt_ended(watchdog, hung=self._hang is not None)
        if left:
            s.run_log.left_behind(left, completed=done)
        self._point_to_dumps()
        oom_kills = max(count_oom_kills() - oom_kills, 0)
        return [self._ending(watch, process, oom_kills=oom_kills) for watch in self._watches]

    @property
    def _is_again(self) -> bool:
        """Whether several ranks start as they have started before."""
        return self._s.agent is not None and self._s.starts.longest_silence_s is not None

    def _start(self, outputs: Sequence[OutputPump]) -> Processes:
        s = self._s
        if s.agent is None:
            return WorkerProcess(
                s.spec,
                self._number,
                self._first.rank,
                outputs[0],
                worker=s.worker_command,
                handover=s.handover.paths,
                given=s.stdin.paths if s.stdin is not None else (),
            )
        line = self._line()
        self._begin_healing(s.agent)
        if s.members is not None:
            return AllNodes(
                s.members,
                s.agent,
                line,
                outputs,
                attempt=self._number,
                meets_within_s=MEETS_WITHIN_S,
            )
        return RankProcesses(
            s.agent, line, outputs, meets_within_s=MEETS_WITHIN_S, place=one_node(s.spec.ranks)
        )

    def _begin_healing(self, agent: AgentProcess) -> None:
        s = self._s
        if not s.spec.settings.restart.heals:
            return
        if s.members is not None:
            s.run_log.tell_once(
                "restart.healing: on several nodes a killed rank has all start again"
            )
        if s.members is not None or s.local_ranks < 2:
            return
        agent.revive()
        memory = agent.keep_collectives()
        if memory is not None:
            order = load_order(s.rundir, self._number)
            stands_by = s.spec.settings.restart.standby
            self._healing = RankHealing(
                s.rundir,
                agent,
                memory,
                order,
                s.run_log.say,
                lambda why: s.run_log.warn(why, found=Warned.NOT_HEALED),
                most_s=s.spec.settings.watchdog.first_step_timeout_s,
                stands_by=stands_by,
            )

    def _heal(self, process: Processes, watchdog: Watchdog, now_s: float) -> None:
        healing = self._healing
        if healing is None or not isinstance(process, RankProcesses):
            return
        may_go_on = self._s.inbox.asked_by is None and self._kill_at_s is None
        steps = [watch.feed.last_step for watch in self._watches]
        try:
            healing.look(process, steps, may_go_on=may_go_on)
        except Exception:  # nobody waits for what nobody looks after
            healing.give_up()
            raise
        if healing.overdue is not None and self._hang is None:
            self._hang, self._hung_rank = "started alone, it was not back in time", healing.overdue
        watchdog.starts_again(healing.is_waiting, now_s)

    def _line(self) -> list[str]:
        s = self._s
        given = s.stdin.paths if s.stdin is not None else not_for_ranks()
        return worker_command(
            s.spec, self._number, self._first.rank, s.worker_command, s.handover.paths, given
        )

    def _look(self, process: Processes, watchdog: Watchdog, outputs: Sequence[OutputPump]) -> None:
        now_s = time.monotonic()
        count = self._guarded("steps", self._take_steps) or 0
        watchdog.saw_steps(count, now_s)
        moved = [watch.life.has_moved() for watch in self._watches]
        moved.append(self._is_alive())
        if any(moved) or any(output.is_blocked for output in outputs):
            watchdog.saw_sign_of_life(now_s)
        if now_s - self._slow_look_s >= _SLOW_LOOK_S:
            self._slow_look_s = now_s
            self._guarded("run directory", self._s.run_log.look_at_directory)
            self._guarded("losses", lambda: self._s.run_log.look_at_losses(self._feed.last_step))
            self._guarded("handover", self._heed_refusals)
            self._guarded("memory", lambda: self._sample(process, watchdog))
            self._guarded("fast-forward", lambda: self._tell_wait(now_s))
            self._guarded("preemption", self._heed_notice)
            self._guarded("devices", self._tell_of_devices)
            self._guarded("note", self._tell_executed)
            self._guarded("standard input", lambda: self._look_at_input(process))
            self._guarded("notices", self._look_at_notices)
            self._guarded("step log", self._look_at_step_log)
            self._guarded("pictures", lambda: self._s.pictures.look(self._feed.last_step))
        if self._s.inbox.take_resize():
            process.resize()
        self._guarded("healing", lambda: self._heal(process, watchdog, now_s))
        self._end_the_others(process, now_s)
        self._heed_signals(process, now_s)
        if self._has_failed(process, now_s):
            process.send(signal.SIGKILL)
        elif (
            self._ends_by_s is None
            and self._kill_at_s is None
            and not self._is_executed
            and watchdog.is_hanging(now_s)
        ):
            self._treat_hang(process, watchdog)

    def _is_alive(self) -> bool:
        """Whether a rank of this node counted in our memory, whatever the disk takes."""
        before = self._signs_of_life
        self._signs_of_life = sum(map(self._s.handover.signs_of_life, range(self._s.local_ranks)))
        return self._signs_of_life != before

    def _heed_refusals(self) -> None:
        """What our own files and those of the ranks meet; tried again and told."""
        refused = [self._s.handover.left_by(rank).refused for rank in range(self._s.local_ranks)]
        self._s.run_log.look_at_disk(next(filter(None, refused), ""))

    def _take_over(self) -> None:
        """The ranks have ended: what they could not write is ours to write."""
        for rank in range(self._s.local_ranks):
            for write in self._s.handover.left_by(rank).writes:
                KEPT.add(write)

    def _take_steps(self) -> int:
        rows, records = self._feed.take()
        # A rollback is in the journal before the step that comes after it is recorded.
        self._s.replica.saw_events(self._s.run_log.merge())
        self._s.replica.update(records)
        self._guarded("metrics", lambda: self._s.metrics.stepped(records, self._s.replica.risk))
        return rows

    def _end_the_others(self, process: Processes, now_s: float) -> None:
        """When a rank has failed the others cannot go on; they have a moment to say what they
        know."""
        if len(process.codes) == len(self._watches):
            return
        if self._broken_since_s is None:
            is_given_up = self._healing is not None and self._healing.is_given_up
            if is_given_up or not all(self._is_completed(rank) for rank in process.codes):
                self._broken_since_s = now_s
                self._guarded("stacks", lambda: self._ask_where_others_stand(process))
                if self._s.agent is not None:
                    self._s.agent.start_save_for_dead(self._s.rundir)
        elif now_s - self._broken_since_s >= LAST_WORDS_S:
            process.send(signal.SIGKILL)

    def _ask_where_others_stand(self, process: Processes) -> None:
        """Where one has waited for them for too long."""
        ended = [watch for watch in self._watches if watch.rank in process.codes]
        exits = [classify(self._ending(watch, process)) for watch in ended]
        if self._hang is not None or any(found.cause is ExitCause.HANG for found in exits):
            hang.forget_records(self._s.rundir, self._number, self._watches)
            hang.ask_for_stacks(process, self._s.rundir, self._watches)

    def _point_to_dumps(self) -> None:
        """NCCL's own watchdog has written what it knew; it is pickle, so nothing here reads it."""
        prefix = self._s.rundir.nccl_trace(self._number)
        if any(prefix.parent.glob(f"{prefix.name}*")):
            self._s.run_log.warn(
                "NCCL has written its records of all collectives: "
                f"torchfrtrace --prefix {prefix.name} {prefix.parent}"
            )

    def _tell_wait(self, now_s: float) -> None:
        """A line at the terminal from time to time while no step can be seen yet."""
        if self._feed.last_step is not None:
            return
        done = None
        if self._target is not None:
            done = replayed_steps(self._s.rundir.replayed(self._first.rank), self._began)
        if done and self._replay_from is None:
            self._replay_from = done, now_s
            return  # at the next look it is known what a step takes
        if now_s < self._tell_at_s:
            return
        line = ""
        if self._target is not None and done is not None and done < self._target:
            first, first_s = self._replay_from or (done, now_s)
            step_s = (now_s - first_s) / (done - first) if done > first else 0.0
            line = describe_replay(done, self._target, time.time() - self._began, step_s)
        elif behind := self._feed.behind():
            named = f"rank{'s' * (len(behind) > 1)} {', '.join(map(str, behind[:_NAMED]))}"
            more = f" and {len(behind) - _NAMED} more" if len(behind) > _NAMED else ""
            line = f"waiting for {named}{more}: the other ranks have made their first step"
        if line:
            self._tell_at_s = now_s + _TELL_EVERY_S
            self._s.run_log.say(line)

    def _sample(self, process: Processes, watchdog: Watchdog) -> None:
        process.family.look()
        watchdog.saw_cpu_time(process.family.cpu_s(), process.family.all_cpu_s())
        self._memory = str(sample_memory(process.family.resident_bytes()))

    def _look_at_notices(self) -> None:
        for problem in self._s.notices.look(
            alarm=self._s.replica.is_risky, step=self._feed.last_step, attempt=self._number
        ):
            self._s.run_log.warn(problem)
        for problem in self._s.metrics.problems():
            self._s.run_log.warn(problem)

    def _look_at_step_log(self) -> None:
        problem = None if self._s.step_log is None else self._s.step_log.look()
        if problem is not None:
            self._s.run_log.warn(problem)

    def _heed_notice(self) -> None:
        """A notice that the machine will be taken asks the run to end, as SIGTERM does."""
        notice = self._s.preemption.look()
        if notice is not None and self._s.inbox.asked_by is None:
            self._s.run_log.warn(notice)
            self._s.inbox.note(signal.SIGTERM)

    def _has_failed(self, process: Processes, now_s: float) -> bool:
        """Whether the script failed in a rank `grace_s` ago, and its process is still there: a
        thread of the script's keeps it, or it waits at its end."""
        if self._ends_by_s is None and now_s == self._slow_look_s:
            left = [watch.rank for watch in self._watches if watch.rank not in process.codes]
            if any(note is not None and note.kind in FAILED for note in map(self._note, left)):
                self._ends_by_s = now_s + self._s.spec.settings.watchdog.grace_s
        return self._ends_by_s is not None and now_s >= self._ends_by_s

    def _heed_signals(self, process: Processes, now_s: float) -> None:
        """Passes signals on, each as it came. Where the sender waits for the end, or the script has
        no handler, the worker saves and ends at its next boundary, or is ended after a while."""
        inbox = self._s.inbox
        grace_s = self._s.spec.settings.watchdog.grace_s
        for request in inbox.unheeded():
            is_handled = self._forward(process, request)
            if is_handled:
                request.passed_on_s = time.time()
            elif self._kill_at_s is None:
                self._kill_at_s = now_s + grace_s
            self._s.run_log.signal_received(
                request.signum, self._feed.last_step, None if is_handled else grace_s
            )
        if self._kill_at_s is not None and (inbox.is_forced or now_s >= self._kill_at_s):
            process.send(signal.SIGKILL)

    def _forward(self, process: Processes, request: Request) -> bool:
        """Sends a signal to the ranks that have not got it already; returns whether the script
        handles it, and may train on."""
        signum, since_s = request.signum, request.at_s - TOGETHER_S
        have_it = [
            watch.rank
            for watch in self._watches
            if arrived_at(self._s.rundir.signals(watch.rank), signum) >= since_s
        ]
        before = {rank: len(sent) for rank, sent in process.signals_sent.items()}
        process.send(signum, but=have_it)
        sent = [
            number
            for rank, numbers in process.signals_sent.items()
            for number in numbers[before.get(rank, 0) :]
        ]
        is_taken = bool(sent or have_it) and all(number == signum for number in sent)
        return signum not in GRACIOUS and is_taken

    def _treat_hang(self, process: Processes, watchdog: Watchdog) -> None:
        def is_back() -> bool:
            count = self._guarded("steps", self._take_steps) or 0
            watchdog.saw_steps(count, time.monotonic())
            lives = count > 0 or any(watch.life.has_moved() for watch in self._watches)
            if lives:
                watchdog.saw_sign_of_life(time.monotonic())
            return lives

        settings = self._s.spec.settings.watchdog
        now_s = time.monotonic()
        reason = watchdog.reason(now_s)
        rundir = self._s.rundir
        evidence = hang.dump_stacks(
            process, settings, rundir, self._number, self._watches, is_back=is_back
        )
        stdin = self._s.stdin
        may_wait = self._guarded(
            "place",
            lambda: self._patience.may_wait(
                watchdog,
                now_s,
                awaits_input=stdin is not None and stdin.is_awaited,
                is_completed=self._is_completed(),
            ),
        )
        if evidence is not None and may_wait:
            return
        if evidence is None:
            stacks = rundir.stacks(self._number, self._first.rank)
            self._s.run_log.warn(f"the training goes on after a silence: {reason}; see {stacks}")
            return
        if self._patience.is_over:
            reason = f"the training is over, but its process did not end by itself: {reason}"
        blamed = f"; {evidence.why}" if evidence.why else ""
        self._hang = reason + blamed + "".join(f"; in {frame}" for frame in evidence.frames[:1])
        self._hung_rank = evidence.rank
        self._s.run_log.hang_detected(
            reason,
            evidence,
            step=self._feed.last_step,
            since_step_s=watchdog.since_step_s(now_s),
            limit_s=watchdog.timeout_s(now_s),
        )
        hang.end_hung(process)
        process.send(signal.SIGKILL)
        process.wait(hang.GRACE_S)

    def _tell_of_devices(self) -> None:
        for line in self._s.devices.news():
            self._s.run_log.tell_once(line)

    def _tell_executed(self) -> None:
        note = None if self._is_executed else self._note(self._first.rank)
        if note is not None and note.kind == "executed":
            self._is_executed = True
            self._s.run_log.say(
                f"the script has executed {note.message}, which goes on without supervision: "
                "its exit code is the run's"
            )

    def _look_at_input(self, process: Processes) -> None:
        if self._s.stdin is None:
            return
        for told in self._s.stdin.news():
            self._s.run_log.warn(told)
        if self._s.stdin.is_wrong:
            process.send(signal.SIGKILL)

    def _ends_itself(self, process: Processes) -> str:
        """Ends what goes on in the background of a script that has ended without a step."""
        s = self._s
        if s.agent is not None or any(watch.feed.has_stepped for watch in self._watches):
            return ""
        note = self._note(self._first.rank)
        forks = note is not None and note.leaves
        ended = process.family.end_copies(self._line(), s.spec.target, forks=forks)
        if not ended:
            return ""
        return (
            f"{s.spec.name} went on in the background (process {ended[0]}, ended), where it cannot "
            "be supervised: have it stay in the foreground, and put the supervisor there instead: "
            "nohup supervisor run ... &"
        )

    def _is_completed(self, *ranks: int) -> bool:
        """Whether these ranks came to their end; without any, all of them."""
        notes = map(self._note, ranks or [watch.rank for watch in self._watches])
        return all(note is not None and note.kind in ("completed", "executed") for note in notes)

    def _note(self, rank: int) -> ExitNote | None:
        s = self._s
        if rank < s.local_ranks:
            left: Left | None = self._guarded("handover", lambda: s.handover.left_by(rank))
            handed = None if left is None else left.note
        else:
            handed = None if s.members is None else s.members.note_of(rank)
        found: ExitNote | None = note_of(handed) or self._guarded(
            "note", lambda: load_exit_note(s.rundir, self._number, rank)
        )
        return found

    def _ending(self, watch: RankWatch, process: Processes, *, oom_kills: int = 0) -> ProcessEnding:
        rundir, settings = self._s.rundir, self._s.spec.settings
        grace_s = settings.watchdog.grace_s
        returncode = process.codes.get(watch.rank, -signal.SIGKILL)
        note, directly = self._note(watch.rank), None
        if note is not None and note.kind == "own_signal" and returncode != -(note.code or 0):
            note = None  # it has survived that one
        counted = (*GRACIOUS, *signal_numbers(settings.preemption.signals))
        if note is not None and note.stopped_by in counted and note.stopped_s <= grace_s:
            directly = note.stopped_by
        last_step = watch.feed.last_step
        if last_step is not None and note is not None and not note.replaying:
            last_step = max(last_step, note.last_step or 0)  # the disk refused the last steps
        ended_s = (note.time if note is not None else 0.0) or time.time()
        if note is not None and note.kind == "completed" and returncode < 0:
            ended_s = time.time()  # a signal may have cut off what the script does at its exit
        return ProcessEnding(
            rank=watch.rank,
            returncode=returncode,
            note=note,
            last_step=last_step,
            has_stepped=watch.feed.has_stepped,
            hang=self._hang if self._hung_rank in (None, watch.rank) else None,
            signals_sent=tuple(process.signals_sent.get(watch.rank, ())),
            asked_by=self._s.inbox.stopped_by(ended_s, grace_s),
            is_over=self._patience.is_over,
            background=self._background or "",
            sent_directly=None if self._patience.is_over else directly,
            oom_kills=oom_kills,
            lost=process.lost.get(watch.rank, ""),
            memory=self._memory,
            log_tail=read_tail(rundir.log(self._number, watch.rank), _LAST_OUTPUT),
            seen=hang.look_at(watch, rundir, self._number) if len(self._watches) > 1 else None,
        )

    def _guarded(self, what: str, work: Callable[[], Any]) -> Any:
        """Runs a part of the watching; if it fails, notes that once and returns None."""
        try:
            return work()
        except Exception as error:
            if what not in self._reported:
                self._reported.add(what)
                text = f"watching the {what} failed: {type(error).__name__}: {error}"
                self._s.run_log.warn(text)
            return None
