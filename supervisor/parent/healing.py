"""One rank was killed: whether it alone is started again, and until it is back.

The others wait in the collective that failed, or for its message. Anything but one plain SIGKILL of
a rank whose memory is whole has all ranks started again, as ever; a line says why. So does a rank
that is not back in time: whoever waits for whom, the parent's limit ends it.

    who waits                     for what                        and no longer than
    in a collective that failed   the parent's word               20 s, then its error is raised
    to come together              all ranks in one generation     the parent's limit
    to connect a group            its ranks, then gloo            a death, or the parent's limit
    for a message of a step       the rank that comes back        the parent's limit, and 60 s
    the parent                    the rank that comes back        its limit; then 5 s, and SIGKILL
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence

from supervisor.held_memory import count_oom_kills
from supervisor.parent.process.agent_process import AgentProcess, RankProcesses
from supervisor.records import WorkerOrder
from supervisor.storage.run.healing_memory import HealingMemory
from supervisor.storage.run.rundir import RunDirectory

_CHANGES = ("skip_steps", "lr_factor", "fp32", "batch_factor", "checkpoint_activations", "resigned")
PART = ".part-"
"""With this the name of what a rank hands over of a checkpoint begins."""
SAVES = "a checkpoint was being written"
_PLAIN = WorkerOrder(attempt=1)
LEAST_LIMIT_S, AGES = 120.0, 2.0
"""A rank does again what it did since the attempt's start, without the others and mostly without
computing: it may take so long, and so many times the attempt's age."""


class RankHealing:
    """One an attempt.

    Args:
        rundir: of the run.
        agent: that starts the ranks; its memory is theirs.
        order: of the attempt.
        say: tells the terminal a line.
        warn: tells why all ranks start again.
        most_s: that a rank may take to come back; less in a young attempt.
        stands_by: a process waits to become a rank that dies.
        clock: monotonic, in seconds.

    Attributes:
        is_given_up: a rank was on its way back, and is not awaited any more: all are to end.
        overdue: the rank for which that was so because it took too long.
    """

    def __init__(
        self,
        rundir: RunDirectory,
        agent: AgentProcess,
        memory: HealingMemory,
        order: WorkerOrder,
        say: Callable[[str], None],
        warn: Callable[[str], None],
        *,
        most_s: float,
        stands_by: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.is_given_up = False
        self.overdue: int | None = None
        self._clock = clock
        self._most_s = most_s
        self._made_s = self._began_s = clock()
        self._limit_s = most_s
        self._rundir = rundir
        self._agent = agent
        self._memory = memory
        self._order = order
        self._say = say
        self._warn = warn
        self._rank: int | None = None
        self._steps: dict[int, int | None] = {}
        self._is_over = False
        self._oom_kills = count_oom_kills()
        self._lacks_standby = stands_by
        self._stands_by = stands_by

    @property
    def is_waiting(self) -> bool:
        """Whether a rank is on its way back; the others are silent, and it is no hang."""
        return self._rank is not None

    def look(
        self, process: RankProcesses, last_steps: Sequence[int | None], *, may_go_on: bool
    ) -> None:
        """Called again and again; a rank whose end is to be treated as ever stays in
        `process.codes`.

        Args:
            process: the ranks.
            last_steps: of each rank, as recorded.
            may_go_on: nobody wants the run to end.
        """
        if self._is_over:
            return
        if self._rank is not None:
            self._await(process, self._rank, may_go_on)
        elif any(process.codes.values()):
            rank = next(rank for rank, code in process.codes.items() if code)
            why = self._objection(process, rank, last_steps[rank]) if may_go_on else "it is to end"
            if why:
                self._decline(f"rank {rank} does not come back alone: {why}")
            else:
                self._start(process, rank, last_steps[rank])
        elif self._lacks_standby and None not in last_steps:  # their own start is over
            self._lacks_standby = False
            process.stand_by()

    def _start(self, process: RankProcesses, rank: int, last_step: int | None) -> None:
        step, _ = self._newest(rank)
        self._rank, self._began_s = rank, self._clock()
        age_s = self._began_s - self._made_s
        self._limit_s = min(self._most_s, LEAST_LIMIT_S + AGES * age_s)
        self._steps[rank] = last_step
        self._memory.mailbox.generation += 1
        self._say(
            f"rank {rank} was killed (SIGKILL): it alone starts again, from step {step} in memory; "
            f"the others wait, {self._limit_s:.0f} s at most"
        )
        process.start_alone(rank, {"step": step, "died_s": time.time()})

    def _await(self, process: RankProcesses, rank: int, may_go_on: bool) -> None:
        mailbox, waited_s = self._memory.mailbox, self._clock() - self._began_s
        why = next(filter(None, map(mailbox.objection_of, process.ranks)), "")
        if mailbox.done == mailbox.generation and not mailbox.declined:
            self._rank, self._lacks_standby = None, self._stands_by
            answers = mailbox.answered(rank)
            self._say(
                f"rank {rank} is back after {waited_s:.1f} s ({answers} answers of its log): no "
                "other rank went back"
            )
        elif process.codes.get(rank) == 0:  # no collective was left that it had to make
            self._rank = None
            self._say(f"rank {rank} is back after {waited_s:.1f} s, and has come to its end")
        elif mailbox.declined and (why or not process.codes):
            self._decline(f"rank {rank} could not come back alone: {why or 'it has ended'}")
        elif any(process.codes.values()):
            ended = ", ".join(str(each) for each, code in sorted(process.codes.items()) if code)
            self._decline(f"rank {rank} does not come back alone: rank {ended} has ended meanwhile")
        elif set(self._saving_ranks()) - {str(rank)}:  # begun before the death, and seen only now
            self._decline(f"rank {rank} does not come back alone: {SAVES}")
        elif not may_go_on or waited_s > self._limit_s:
            self.overdue = rank if may_go_on else None
            self._decline(f"rank {rank} is not back after {waited_s:.0f} s")
        elif process.codes:  # the others need it no more, and make nothing with it any more
            mailbox.decline()

    def _decline(self, why: str) -> None:
        self.give_up()
        self._warn(f"{why}: all ranks start again")

    def give_up(self) -> None:
        """All ranks start again from here on; those that wait for one do so no longer."""
        self.is_given_up |= self.is_waiting
        self._is_over, self._rank = True, None
        self._memory.mailbox.decline()

    def _objection(self, process: RankProcesses, rank: int, last_step: int | None) -> str:
        """Why all ranks start again; empty if this one can come back alone."""
        if process.codes[rank] != -signal.SIGKILL or rank in process.signals_sent:
            return "it was not killed by somebody else's SIGKILL"
        if len(process.codes) > 1:
            return "another rank has ended as well"
        if count_oom_kills() > self._oom_kills:
            return "there is not enough memory"
        if self._steps.get(rank, -1) == last_step:
            return "it was killed again before it had made a step"
        if any(getattr(self._order, name) != getattr(_PLAIN, name) for name in _CHANGES):
            return "this attempt began with a treatment"
        if self._order.retry_until is not None or self._order.experiment:
            return "this attempt is an experiment"
        for each in process.ranks:
            why = self._memory.mailbox.objection_of(each)
            if why:
                return f"rank {each}: {why}"
        return self._memory_objection(rank)

    def _memory_objection(self, rank: int) -> str:
        step, place = self._newest(rank)
        if step is None:
            return "it has no state in memory yet"
        if self._memory.log_step(rank, place) != step:
            return "its log has not all that came after its state"
        folder = self._rundir.checkpoints
        if self._saving_ranks():
            return SAVES
        saved = [int(p.name.rpartition("_")[2]) for p in folder.glob("step_*") if p.is_dir()]
        if max(saved, default=0) > step:
            return "a checkpoint is newer than its state in memory"
        return ""

    def _saving_ranks(self) -> list[str]:
        """Returns the numbers of those that have handed over parts of a checkpoint which is not
        there yet."""
        # Those of earlier attempts are left over, and an "off" says that nothing is written.
        parts = self._rundir.checkpoints.glob(f"{PART}*-{self._order.attempt}-*")
        return [part.name.rpartition("-")[2] for part in parts if "-off" not in part.name]

    def _newest(self, rank: int) -> tuple[int | None, int]:
        """Returns the newest step of which the rank has a whole state, and in which place."""
        found = self._agent.kept.steps_of(rank)
        whole = [(step, place) for place, step in enumerate(found) if step is not None]
        return max(whole, default=(None, 0))
