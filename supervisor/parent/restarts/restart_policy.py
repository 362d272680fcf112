"""Decides what follows an attempt: another one, from where and how, or the end of the run.

How an attempt returns to its checkpoint, and what is tried if it does not get there.

An attempt that ends before that has trained nothing, so it is no crash of the training: the next
one tries another way. No way is tried twice, so this ends.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from supervisor.codes import ExitSign, OutsideCause
from supervisor.parent.restarts.exits import failure_key
from supervisor.parent.restarts.failure_signs import ANOTHER_RANK, OUTSIDE, outside_fault
from supervisor.records import LOADS_ALL, REPLAY, ExitCause, WorkerExit, WorkerOrder
from supervisor.settings import FastForwardSettings, RestartSettings

MEMORY = (ExitCause.OUT_OF_MEMORY, ExitCause.HOST_OUT_OF_MEMORY)
SMALLEST_BATCH = 1 / 16
"""As the action `smaller_batch`: below it the fixed cost of a microbatch outweighs its memory."""
_FAILURES_UNTIL_SKIP = 2
_FAILURES_UNTIL_STOP = 3
_NUMERICAL_UNTIL_FP32 = 2

_NEVER_OF_DATA = (ExitCause.KILLED, ExitCause.HANG, ExitCause.HOST_OUT_OF_MEMORY)

_AS_BEFORE = WorkerOrder(attempt=0)

Start = Literal["stable", "latest"]


def may_be_sick(cause: ExitCause | None, *, risky: bool) -> bool:
    """Whether the newest state of an attempt that ended so may be bad: an older one is taken."""
    return cause is ExitCause.NONFINITE or risky


def is_numerical(cause: ExitCause | None, *, risky: bool) -> bool:
    """Whether the training itself ended the attempt, so that the next one must train otherwise.

    A process that somebody killed, that hung or had no memory at a high risk goes on unchanged: its
    risk is treated by the running attempt, if at all.
    """
    return cause is ExitCause.NONFINITE or (risky and cause is ExitCause.EXCEPTION)


def _came_from_outside(worker_exit: WorkerExit) -> bool:
    """Whether its data are not to blame: a signal ended it, whoever sent it, a wait was in vain,
    the host's memory or a disk had no room, or another rank had gone."""
    if worker_exit.sign is ExitSign.OWN_SIGNAL:
        return True
    if worker_exit.cause in _NEVER_OF_DATA or worker_exit.outside is not None:
        return True
    first = worker_exit.evidence[0] if worker_exit.evidence else ""
    return outside_fault(first) == ANOTHER_RANK


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A decision of the restart policy.

    Attributes:
        again: start another attempt; else the run is given up.
        reason: why, in one sentence.
        delay_s: wait before the attempt.
        start: from the newest ``stable`` checkpoint, or the ``latest`` that verifies.
        before_step: only checkpoints of earlier steps, so that new settings apply at this step.
        order: how the attempt is to train; its number, start and way are not set yet.
    """

    again: bool
    reason: str
    delay_s: float = 0.0
    start: Start = "latest"
    before_step: int | None = None
    order: WorkerOrder = _AS_BEFORE


@dataclass(slots=True)
class _Memory:
    """What earlier attempts leave behind."""

    without_progress: int = 0
    numerical: int = 0
    base_step: int = -1
    batch_factor: float = 1.0
    checkpoint_activations: bool = False
    resigned: bool = False
    most_copies: int | None = None
    failures: Counter[tuple[str, int | None]] = field(default_factory=Counter)
    skip_steps: set[int] = field(default_factory=set)


class RestartPolicy:
    """Counts crashes and chooses what comes after each.

    Pure: no clock, no file. One object lives as long as the run in this parent.
    """

    def __init__(
        self, settings: RestartSettings, *, first_step: int = 0, backoff: Backoff | None = None
    ) -> None:
        """`first_step`: the step the first attempt starts from; progress counts beyond it."""
        self._settings = settings
        self._backoff = backoff or Backoff(settings.backoff_s, settings.backoff_max_s)
        self._memory = _Memory(base_step=first_step - 1)

    @property
    def crashes(self) -> int:
        """Crashes without progress so far."""
        return self._memory.without_progress

    def decide(
        self,
        worker_exit: WorkerExit,
        *,
        risky: bool = False,
        finite: bool = False,
        copies: int = 0,
    ) -> Verdict:
        """Returns what to do after an attempt that may be retried.

        Args:
            worker_exit: an exit whose `retry` is true.
            risky: the crash risk was above the alarm line at the end.
            finite: loss and gradient of the last step were numbers.
            copies: of the state that one of its processes held in memory at the end.
        """
        if worker_exit.cause is ExitCause.HOST_OUT_OF_MEMORY and copies:
            return self._with_fewer_copies(copies)
        untried = worker_exit.offers_checkpointing and not self._memory.checkpoint_activations
        if worker_exit.cause in MEMORY and untried:
            self._memory.checkpoint_activations = True
            return self._again(
                "memory ran out: activations are computed again in the backward pass"
            )
        if worker_exit.cause in MEMORY and self._memory.batch_factor > SMALLEST_BATCH:
            self._memory.batch_factor /= 2
            if worker_exit.asks_batch_size:
                return self._with_smaller_batches(worker_exit)
        cause = worker_exit.cause
        start: Start = "stable" if may_be_sick(cause, risky=risky) else "latest"
        numerical = is_numerical(cause, risky=risky)
        self._count(worker_exit, numerical=numerical)
        key = (failure_key(worker_exit), worker_exit.last_step)
        same = self._memory.failures[key]
        if worker_exit.outside not in (None, OutsideCause.UNSEEN):
            same = 1  # what is outside may be mended meanwhile: the crash limit alone counts
        is_over = same >= _FAILURES_UNTIL_STOP or (
            self._memory.without_progress >= self._settings.crash_limit
        )
        if is_over and finite and worker_exit.sign is ExitSign.TREATMENT:
            return self._resign()
        if same >= _FAILURES_UNTIL_STOP:
            return Verdict(again=False, reason=self._came_again(worker_exit, same))
        if self._memory.without_progress >= self._settings.crash_limit:
            return Verdict(again=False, reason=self._limit_reached(worker_exit))
        reason = _reason(start, numerical=numerical)
        step = worker_exit.last_step
        if (
            same >= _FAILURES_UNTIL_SKIP
            and step is not None
            and not _came_from_outside(worker_exit)
        ):
            # The record of a step is written before its update, so a crash in the forward of the
            # next step leaves the same last step as one in this update: either may be at fault.
            self._memory.skip_steps.update((step, step + 1))
            reason += f"; the same failure twice at step {step}: its data is left out"
        return self._again(reason, start=start, numerical=numerical)

    def _resign(self) -> Verdict:
        """Nothing has failed but our own restarts: alone, the script may well run to its end. So it
        loses no more steps either."""
        count = self._memory.without_progress
        self._memory = replace(self._memory, resigned=True, without_progress=0, numerical=0)
        self._memory.failures.clear()
        return self._again(
            f"{count} restarts have not helped, and all values are finite: left alone from here on"
        )

    def _with_fewer_copies(self, copies: int) -> Verdict:
        """Our copies may have been what was too much: the script is not to blame, nor changed, as
        long as there were any. Not counted either: after one copy there is none."""
        fewer = 1 if copies > 1 else 0
        self._memory.most_copies = fewer
        return self._again(
            f"the host's memory ran out while {copies} copies of the state were held: "
            f"{fewer or 'none'} from here on"
        )

    def _with_smaller_batches(self, worker_exit: WorkerExit) -> Verdict:
        """Not counted as a crash: each is another remedy, and there are only four.

        The script asked for the size of a step's microbatches before the forward at whose entry a
        checkpoint is made, so one of the very step that failed would come with the old size.
        """
        part = round(1 / self._memory.batch_factor)
        last_step = worker_exit.last_step
        return replace(
            self._again(f"memory ran out: microbatches of 1/{part}, as many more of them"),
            before_step=0 if last_step is None else last_step + 1,
        )

    def _count(self, worker_exit: WorkerExit, *, numerical: bool) -> None:
        memory = self._memory
        last_step = worker_exit.last_step
        if last_step is not None and last_step - memory.base_step >= self._settings.progress_steps:
            memory.without_progress = 0
            memory.numerical = 0
            memory.base_step = last_step
        memory.without_progress += 1
        memory.numerical += numerical
        memory.failures[failure_key(worker_exit), last_step] += 1

    def _again(self, reason: str, *, start: Start = "latest", numerical: bool = False) -> Verdict:
        settings, memory = self._settings, self._memory
        return Verdict(
            again=True,
            reason=reason,
            delay_s=self._backoff.delay_s(memory.without_progress),
            start=start,
            order=replace(
                _AS_BEFORE,
                skip_steps=tuple(sorted(memory.skip_steps)),
                lr_factor=settings.careful_lr_factor**memory.numerical if numerical else 1.0,
                careful_steps=settings.careful_steps if numerical else 0,
                batch_factor=memory.batch_factor,
                checkpoint_activations=memory.checkpoint_activations,
                resigned=memory.resigned,
                most_copies=memory.most_copies,
                fp32=numerical and memory.numerical >= _NUMERICAL_UNTIL_FP32,
            ),
        )

    def _came_again(self, worker_exit: WorkerExit, times: int) -> str:
        last_step = worker_exit.last_step
        where = "before the first step" if last_step is None else f"after step {last_step}"
        if last_step in self._memory.skip_steps:
            where += ", the last without its data"
        evidence = worker_exit.evidence[0] if worker_exit.evidence else worker_exit.cause.value
        return f"the same failure {times} times {where}: {evidence}"

    def _limit_reached(self, worker_exit: WorkerExit) -> str:
        count = self._memory.without_progress
        evidence = worker_exit.evidence[0] if worker_exit.evidence else worker_exit.cause.value
        outside = worker_exit.outside
        why = "" if outside in (None, OutsideCause.UNSEEN) else f" ({OUTSIDE[outside]})"
        return (
            f"crash limit: {count} crash{'es' if count > 1 else ''} without "
            f"{self._settings.progress_steps} new steps between them; the last: {evidence}{why}"
        )


def _reason(start: Start, *, numerical: bool) -> str:
    if numerical:
        return "numerical trouble: the newest stable checkpoint"
    if start == "stable":
        return "the process was ended at a high risk: the newest stable checkpoint"
    return "the process failed, its state was healthy: the newest checkpoint"


JITTER = 0.2


class Backoff:
    """Waits that double from `first_s` up to `longest_s`, each spread by +-20 %.

    The spread keeps many runs from restarting at the same moment after a common failure.
    """

    def __init__(
        self,
        first_s: float,
        longest_s: float,
        uniform: Callable[[float, float], float] | None = None,
    ) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._uniform = uniform or random.Random().uniform

    def delay_s(self, failures: int) -> float:
        """Returns the wait after the n-th failure without progress, counted from 1."""
        # 2**64 seconds is longer than any limit; without the cap a long run overflows the float.
        doubled = self._first_s * 2.0 ** min(max(failures, 1) - 1, 64)
        return min(doubled, self._longest_s) * self._uniform(1 - JITTER, 1 + JITTER)


START = "start"
_FROM_OUTSIDE = (ExitCause.KILLED, ExitCause.HANG, *MEMORY)
_DESCRIBED = {
    LOADS_ALL: "by another fast-forward, with all batches loaded",
    "approximate": "approximately: state put back, the script's loop from its top",
    START: "from the start",
}


class WaysBack:
    """Which way the next attempt takes; one object lives as long as the run in this parent.

    Args:
        settings: the order of the ways.
        kills: ends from outside (killed, hung, out of memory) that a way may have.
        few_steps: a checkpoint of at most this many steps is not worth an approximate resume.
        way: taken by the last attempt of an earlier parent.
    """

    def __init__(
        self, settings: FastForwardSettings, *, kills: int, few_steps: int, way: str = REPLAY
    ) -> None:
        self.way = way
        self._left = [one for one in settings.fallbacks if one in ("approximate", START)]
        if way in self._left:
            del self._left[: self._left.index(way) + 1]
        self._kills = kills
        self._few_steps = few_steps
        self._killed = 0

    def arrived(self) -> None:
        """Notes that the way worked: ends from outside are counted anew."""
        self._killed = 0

    def load_all(self) -> str:
        """Returns the way after an attempt that needed what it had not loaded, for good."""
        self.way = LOADS_ALL
        return self.way

    def next(self, worker_exit: WorkerExit, checkpoint_step: int) -> str | None:
        """Returns the way after an attempt that did not arrive; `START`: from the script's start.

        None if there is no other way: the end is then judged like any other.
        """
        if worker_exit.cause in _FROM_OUTSIDE:
            # A silence is more often this way's own than the network's, and costs minutes.
            self._killed += 2 if worker_exit.cause is ExitCause.HANG else 1
            if self._killed < self._kills:
                return self.way
        self._killed = 0
        if not self._left:
            return None
        if self._left[0] == "approximate" and self._starts_cheaper(checkpoint_step):
            return START
        if self._left[0] == START:
            return START
        self.way = self._left.pop(0)
        return self.way

    def _starts_cheaper(self, checkpoint_step: int) -> bool:
        return START in self._left and checkpoint_step <= self._few_steps


def describe(attempt: int, worker_exit: WorkerExit, checkpoint_step: int, way: str) -> str:
    """Returns why the next attempt takes this way, in one sentence."""
    evidence = worker_exit.evidence[0] if worker_exit.evidence else worker_exit.cause.value
    then = "the next one tries the same again"
    if way in _DESCRIBED:
        then = f"the next one goes on {_DESCRIBED[way]}"
    return (
        f"attempt {attempt} ended before it came back to step {checkpoint_step}, which does not "
        f"count as a crash of the training ({evidence}): {then}"
    )
