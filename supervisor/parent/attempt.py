"""One attempt: a worker, or several ranks, from the start to the end, watched."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence

from supervisor.codes import Warned
from supervisor.held_memory import count_oom_kills
from supervisor.parent.attempt_context import AttemptContext, Guards
from supervisor.parent.healing import RankHealing
from supervisor.parent.nodes.all_nodes import AllNodes
from supervisor.parent.passed_signals import PassedSignals
from supervisor.parent.process.agent_process import AgentProcess, RankProcesses
from supervisor.parent.process.family import sample_memory
from supervisor.parent.process.process import Processes, WorkerProcess, worker_command
from supervisor.parent.rank_endings import RankEndings
from supervisor.parent.restarts.exits import ProcessEnding, classify
from supervisor.parent.run_file import check_lease
from supervisor.parent.silent_ranks import SilentRanks
from supervisor.parent.standard_input import not_for_ranks
from supervisor.parent.terminal.output import AttemptLog, OutputPump
from supervisor.parent.watching import hang
from supervisor.parent.watching.first_step_lines import FirstStepLines
from supervisor.parent.watching.rank_watch import GroupFeed, RankWatch
from supervisor.parent.watching.watchdog import Unkillable, Watchdog
from supervisor.ranks import one_node
from supervisor.records import ExitCause
from supervisor.storage.files.kept_writes import KEPT
from supervisor.storage.run.exit_notes import FAILED
from supervisor.storage.run.run_state import load_order

LAST_WORDS_S = 5.0
"""After a rank has failed: for the others to save what they have and to say how they ended."""
MEETS_WITHIN_S = 600.0
"""For all nodes to come; torch's own default for a rendezvous."""
_SLOW_LOOK_S = 1.0


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
        self._guards = Guards(context.run_log)
        self._watches = [RankWatch(context.rundir, rank) for rank in ranks]
        self._first = self._watches[0]
        self._feed = GroupFeed(self._watches)
        self._lines = FirstStepLines(
            context.rundir, self._feed, self._first.rank, target, context.run_log.say
        )
        self._signals = PassedSignals(context, self._watches, self._feed)
        self._endings = RankEndings(context, number, self._watches, self._guards)
        self._memory = ""
        self._broken_since_s: float | None = None
        self._is_executed = False
        self._background = ""
        self._ends_by_s: float | None = None
        self._slow_look_s = 0.0
        self._signs_of_life = 0
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
        silence = SilentRanks(s, self._number, self._watches, self._guards, self._take_steps)
        unkillable = Unkillable()
        try:
            while not process.wait(s.poll_s):
                check_lease(s.lease)
                self._look(process, silence, outputs)
                if unkillable.is_there(process.signals_sent.values(), time.monotonic()):
                    s.run_log.warn("a process does not end after SIGKILL: it is left running")
                    break
        finally:
            left, done = self._end(process, silence)
        if left:
            s.run_log.left_behind(left, completed=done)
        self._point_to_dumps()
        oom_kills = max(count_oom_kills() - oom_kills, 0)
        return [
            self._endings.of(
                watch,
                process,
                silence,
                background=self._background,
                memory=self._memory,
                oom_kills=oom_kills,
            )
            for watch in self._watches
        ]

    def _end(self, process: Processes, silence: SilentRanks) -> tuple[Sequence[str], bool]:
        """Ends what still runs, and takes in the last of what the ranks have left.

        Returns:
            Names of what goes on to run all the same, and whether all ranks were completed.
        """
        s = self._s
        if s.lease.taken_by is not None:
            s.run_log.fall_silent()
        done = len(process.codes) == len(self._watches) and self._endings.are_completed()
        if done and not s.spec.settings.keep_background:
            self._background = self._guards("background", lambda: self._ends_itself(process)) or ""
        left = process.stop(keep_others=done and s.spec.settings.keep_background)
        if self._healing is not None and self._healing.is_waiting:
            self._guards("healing", lambda: self._heal(process, silence, time.monotonic()))
        silence.take_steps()
        self._guards("handover", self._take_over)
        self._guards("journal", s.run_log.merge)
        self._guards("note", self._tell_executed)
        self._feed.close()
        if s.stdin is not None:
            s.stdin.end_attempt()
        s.starts.attempt_ended(silence.watchdog, hung=silence.hang is not None)
        return left, done

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

    def _heal(self, process: Processes, silence: SilentRanks, now_s: float) -> None:
        healing = self._healing
        if healing is None or not isinstance(process, RankProcesses):
            return
        may_go_on = self._s.inbox.asked_by is None and self._signals.kill_at_s is None
        steps = [watch.feed.last_step for watch in self._watches]
        try:
            healing.look(process, steps, may_go_on=may_go_on)
        except Exception:  # nobody waits for what nobody looks after
            healing.give_up()
            raise
        if healing.overdue is not None:
            silence.not_back(healing.overdue)
        silence.watchdog.starts_again(healing.is_waiting, now_s)

    def _line(self) -> list[str]:
        s = self._s
        given = s.stdin.paths if s.stdin is not None else not_for_ranks()
        return worker_command(
            s.spec, self._number, self._first.rank, s.worker_command, s.handover.paths, given
        )

    def _look(
        self, process: Processes, silence: SilentRanks, outputs: Sequence[OutputPump]
    ) -> None:
        now_s, watchdog = time.monotonic(), silence.watchdog
        silence.take_steps()
        moved = [watch.life.has_moved() for watch in self._watches]
        moved.append(self._is_alive())
        if any(moved) or any(output.is_blocked for output in outputs):
            watchdog.saw_sign_of_life(now_s)
        if now_s - self._slow_look_s >= _SLOW_LOOK_S:
            self._slow_look_s = now_s
            self._guards("run directory", self._s.run_log.look_at_directory)
            self._guards("losses", lambda: self._s.run_log.look_at_losses(self._feed.last_step))
            self._guards("handover", self._heed_refusals)
            self._guards("memory", lambda: self._sample(process, watchdog))
            self._guards("fast-forward", lambda: self._lines.look(now_s))
            self._guards("preemption", self._heed_notice)
            self._guards("devices", self._tell_of_devices)
            self._guards("note", self._tell_executed)
            self._guards("standard input", lambda: self._look_at_input(process))
            self._guards("notices", self._look_at_notices)
            self._guards("step log", self._look_at_step_log)
            self._guards("pictures", lambda: self._s.pictures.look(self._feed.last_step))
        if self._s.inbox.take_resize():
            process.resize()
        self._guards("healing", lambda: self._heal(process, silence, now_s))
        self._end_the_others(process, silence, now_s)
        self._signals.heed(process, now_s)
        if self._has_failed(process, now_s):
            process.send(signal.SIGKILL)
        elif (
            self._ends_by_s is None
            and self._signals.kill_at_s is None
            and not self._is_executed
            and watchdog.is_hanging(now_s)
        ):
            is_completed = self._endings.are_completed()
            silence.treat(process, self._feed.last_step, is_completed=is_completed)

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
        self._guards("metrics", lambda: self._s.metrics.stepped(records, self._s.replica.risk))
        return rows

    def _end_the_others(self, process: Processes, silence: SilentRanks, now_s: float) -> None:
        """When a rank has failed the others cannot go on; they have a moment to say what they
        know."""
        if len(process.codes) == len(self._watches):
            return
        if self._broken_since_s is None:
            is_given_up = self._healing is not None and self._healing.is_given_up
            if is_given_up or not all(self._endings.are_completed(rank) for rank in process.codes):
                self._broken_since_s = now_s
                self._guards("stacks", lambda: self._ask_where_others_stand(process, silence))
                if self._s.agent is not None:
                    self._s.agent.start_save_for_dead(self._s.rundir)
        elif now_s - self._broken_since_s >= LAST_WORDS_S:
            process.send(signal.SIGKILL)

    def _ask_where_others_stand(self, process: Processes, silence: SilentRanks) -> None:
        """Where one has waited for them for too long."""
        ended = [watch for watch in self._watches if watch.rank in process.codes]
        exits = [classify(self._endings.of(watch, process, silence)) for watch in ended]
        if silence.hang is not None or any(found.cause is ExitCause.HANG for found in exits):
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
            if any(
                note is not None and note.kind in FAILED for note in map(self._endings.note, left)
            ):
                self._ends_by_s = now_s + self._s.spec.settings.watchdog.grace_s
        return self._ends_by_s is not None and now_s >= self._ends_by_s

    def _tell_of_devices(self) -> None:
        for line in self._s.devices.news():
            self._s.run_log.tell_once(line)

    def _tell_executed(self) -> None:
        note = None if self._is_executed else self._endings.note(self._first.rank)
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
        note = self._endings.note(self._first.rank)
        forks = note is not None and note.leaves
        ended = process.family.end_copies(self._line(), s.spec.target, forks=forks)
        if not ended:
            return ""
        return (
            f"{s.spec.name} went on in the background (process {ended[0]}, ended), where it cannot "
            "be supervised: have it stay in the foreground, and put the supervisor there instead: "
            "nohup supervisor run ... &"
        )
