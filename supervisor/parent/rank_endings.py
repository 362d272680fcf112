"""How each rank of an attempt has ended: its exit note, its signals, its last lines."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence

from supervisor.parent.attempt_context import AttemptContext, Guards
from supervisor.parent.process.process import Processes
from supervisor.parent.process.signals import GRACIOUS, signal_numbers
from supervisor.parent.restarts.exits import ProcessEnding
from supervisor.parent.silent_ranks import SilentRanks
from supervisor.parent.terminal.output import read_tail
from supervisor.parent.watching import hang
from supervisor.parent.watching.rank_watch import RankWatch
from supervisor.storage.run.exit_notes import ExitNote, load_exit_note, note_of
from supervisor.storage.run.handover import Left

_LAST_OUTPUT = 16384
"""Bytes: NCCL's watchdog writes stacks of C++ behind what it has found."""


class RankEndings:
    """Of one attempt."""

    def __init__(
        self,
        context: AttemptContext,
        number: int,
        watches: Sequence[RankWatch],
        guards: Guards,
    ) -> None:
        self._s, self._number, self._watches, self._guards = context, number, watches, guards

    def are_completed(self, *ranks: int) -> bool:
        """Whether these ranks came to their end; without any, all of them."""
        notes = map(self.note, ranks or [watch.rank for watch in self._watches])
        return all(note is not None and note.kind in ("completed", "executed") for note in notes)

    def note(self, rank: int) -> ExitNote | None:
        """Returns what a rank has left; None if it has left none."""
        s = self._s
        if rank < s.local_ranks:
            left: Left | None = self._guards("handover", lambda: s.handover.left_by(rank))
            handed = None if left is None else left.note
        else:
            handed = None if s.members is None else s.members.note_of(rank)
        found: ExitNote | None = note_of(handed) or self._guards(
            "note", lambda: load_exit_note(s.rundir, self._number, rank)
        )
        return found

    def of(
        self,
        watch: RankWatch,
        process: Processes,
        silence: SilentRanks,
        *,
        background: str = "",
        memory: str = "",
        oom_kills: int = 0,
    ) -> ProcessEnding:
        """Returns what is known of one rank.

        Args:
            silence: whether it was ended because it hung.
            background: what the script has left running there; empty for nothing.
            memory: of the processes, as of the last look.
            oom_kills: how often the kernel has killed in our cgroup since the attempt began.
        """
        rundir, settings = self._s.rundir, self._s.spec.settings
        grace_s = settings.watchdog.grace_s
        returncode = process.codes.get(watch.rank, -signal.SIGKILL)
        note, directly = self.note(watch.rank), None
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
            hang=silence.hang if silence.is_hang_of(watch.rank) else None,
            signals_sent=tuple(process.signals_sent.get(watch.rank, ())),
            asked_by=self._s.inbox.stopped_by(ended_s, grace_s),
            is_over=silence.is_over,
            background=background,
            sent_directly=None if silence.is_over else directly,
            oom_kills=oom_kills,
            lost=process.lost.get(watch.rank, ""),
            memory=memory,
            log_tail=read_tail(rundir.log(self._number, watch.rank), _LAST_OUTPUT),
            seen=hang.look_at(watch, rundir, self._number) if len(self._watches) > 1 else None,
        )
