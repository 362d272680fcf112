"""Finds the cause of a crash by controlled replay.

The trouble is replayed from a checkpoint before it: first unchanged, then with one change at a
time. What cures it points to the cause.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from supervisor.analysis.explain.changes import (
    Criterion,
    changes_to_try,
    criterion_of,
    first_difference,
    next_dose,
    start_before,
)
from supervisor.analysis.explain.explanation import Explanation, ReplayOutcome, explanation_of
from supervisor.analysis.explain.finding import (
    LOSS,
    NOTHING,
    StepFinding,
    exception_of,
    finding_of,
    first_of,
    refined,
)
from supervisor.analysis.explain.onset import Trouble, find_trouble, healthy, nonfinite
from supervisor.analysis.explain.replay import (
    ReplayChange,
    ReplayedRun,
    ReplayRunner,
    remaining_s,
    replay_studio,
)
from supervisor.analysis.explain.rules import (
    BEFORE_ONSET,
    CHANGES,
    FP32,
    LATER_BATCHES,
    TOO_NARROW,
    UNCHANGED,
    Diagnosis,
    Effect,
    diagnose,
    effect_of,
    is_settled,
)
from supervisor.codes import ExitCause
from supervisor.errors import SupervisorError
from supervisor.ranks import FIRST_RANK
from supervisor.storage.files.private_files import write_json
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps.flight_reader import FlightReader, read_group_steps

BUDGET_S = 900.0
MIN_REPLAY_S = 5.0
HANG_S = 120.0
"""Beyond ten times what the steps took: a replay of a hang stands still as well."""
BEYOND_ONSET = 20
NOT_THERE = -1
"""The replay ended before it could show anything."""


def explain(
    rundir: RunDirectory,
    *,
    budget_s: float = BUDGET_S,
    changes: Collection[str] = CHANGES,
    make_all: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Explanation:
    """Explains the first trouble of a run that has ended, and writes ``report/explain.json``.

    Otherwise the run directory is only read.

    Args:
        rundir: of the run.
        budget_s: replays that cannot begin within this time are left out.
        changes: which replays to make; the identical one is always made.
        make_all: also those that can no longer change the answer.
        say: called with progress.

    Raises:
        SupervisorError: nothing went wrong, no earlier state is left, a process is at work in the
            run, or no replay reached its trouble.
    """
    deadline = time.monotonic() + budget_s
    trouble = find_trouble(rundir)
    _tell_lost_steps(rundir, say)
    with replay_studio(rundir) as runner:
        case = _Case(rundir, runner, trouble, deadline, say)
        found = case.explain(changes, make_all=make_all)
        explanation = dataclasses.replace(found, ranks=runner.state.world_size)
    write_json(rundir.report / "explain.json", explanation.to_dict())
    return explanation


def _tell_lost_steps(rundir: RunDirectory, say: Callable[[str], None]) -> None:
    with FlightReader(rundir.steps(FIRST_RANK)) as reader:
        lost = reader.lost_rows()
    if lost:
        say(f"{rundir.steps(FIRST_RANK)}: the file was cut, its last {lost} steps are missing")


class _Case:
    """Explains one trouble."""

    def __init__(
        self,
        rundir: RunDirectory,
        runner: ReplayRunner,
        trouble: Trouble,
        deadline: float,
        say: Callable[[str], None],
    ) -> None:
        self._runner = runner
        self._trouble = trouble
        self._deadline = deadline
        self._say = say
        ranks = runner.state.world_size
        self._recorded = read_group_steps(rundir, ranks, all_attempts=True)
        self._start = start_before(rundir, runner, trouble.onset_step, say)
        if self._start is None:
            self._check_way(rundir)
        self._fp32: ReplayedRun | None = None
        self._stop = max(trouble.onset_step + BEYOND_ONSET, trouble.crash_step + BEFORE_ONSET) + 1

    @property
    def _first_step(self) -> int:
        return 0 if self._start is None else self._start.step

    def explain(self, names: Collection[str], *, make_all: bool) -> Explanation:
        onset = self._trouble.onset_step
        where = f"step {self._start.step}" if self._start else "the start of the script"
        self._say(f"{self._trouble.what} from step {onset} on; replays from {where}")
        unchanged = self._replay(ReplayChange(name=UNCHANGED))
        if len(unchanged.rows) == 0:
            raise SupervisorError(_no_step(unchanged))
        criterion = criterion_of(unchanged, self._recorded, onset)
        crash = criterion.crash_step(unchanged)
        outcomes = [_outcome(UNCHANGED, crash, self._say)]
        if crash is None:
            return explanation_of(onset, self._not_again(unchanged), outcomes)
        effects = self._effects(names, unchanged, criterion, crash, outcomes, make_all=make_all)
        diagnosis = diagnose(
            effects,
            steps_to_crash=crash - self._first_step,
            from_checkpoint=self._start is not None,
            is_sudden=self._is_sudden(crash),
        )
        overflow = self._overflow_step(unchanged) if not self._is_sudden(crash) else None
        if overflow is not None and diagnosis.root_cause in ("data", "model_code"):
            finding = self._look(unchanged, overflow)
            return explanation_of(onset, TOO_NARROW, outcomes, finding)
        if diagnosis.root_cause in _WHOLE and not self._is_sudden(crash):
            return explanation_of(onset, diagnosis, outcomes)
        finding = self._look(unchanged, crash)
        diagnosis = refined(diagnosis, finding, is_sudden=self._is_sudden(crash))
        if diagnosis.root_cause in _WHOLE:
            return explanation_of(onset, diagnosis, outcomes)
        return explanation_of(onset, diagnosis, outcomes, finding)

    def _effects(
        self,
        names: Collection[str],
        unchanged: ReplayedRun,
        criterion: Criterion,
        crash: int,
        outcomes: list[Any],
        *,
        make_all: bool,
    ) -> dict[str, Effect]:
        effects: dict[str, Effect] = {}
        tried: set[str] = set()

        def make(change: ReplayChange) -> None:
            tried.add(change.name)
            if remaining_s(self._deadline) < MIN_REPLAY_S:
                self._say(f"{change.name}: left out, the time is up")
                return
            at = self._crash_under(change, unchanged, criterion)
            if at != NOT_THERE:
                outcomes.append(_outcome(change.name, at, self._say))
                effects[change.name] = effect_of(change.name, at, crash, len(change.skip_steps))

        onset = self._trouble.onset_step
        for change in changes_to_try(self._recorded, onset, crash):
            if change.name not in names:
                continue
            if not make_all and is_settled(effects):
                self._say(f"{change.name}: left out, the answer is settled (--all makes it)")
                continue
            make(change)
        first = self._first_step
        while dose := next_dose(effects, tried, onset=onset, first_step=first, crash=crash):
            make(dose)
        return effects

    def _crash_under(
        self, change: ReplayChange, unchanged: ReplayedRun, criterion: Criterion
    ) -> int | None:
        """The step of the crash under a change, None without one; `NOT_THERE` if it tells none."""
        replay = self._replay(change)
        raised = _exception_type(replay)
        if raised not in ("", _exception_type(unchanged)) and not self._reached(replay):
            self._say(f"{change.name}: the script does not run like this ({raised})")
            return NOT_THERE
        at = criterion.crash_step(replay, change.skip_steps)
        if at is None and not self._reached(replay):
            self._say(f"{change.name}: it did not get there")
            return NOT_THERE
        until = self._stop if at is None else at + 1
        is_other = first_difference(unchanged.rows, replay.rows, until) is not None
        if change.name == LATER_BATCHES and at is not None and not is_other:
            self._say(f"{change.name}: the script does not get its batches from a loader")
            return NOT_THERE
        if change.name == FP32:
            self._fp32 = replay
        return at

    def _replay(self, change: ReplayChange) -> ReplayedRun:
        timeout_s = remaining_s(self._deadline)
        if self._trouble.what == ExitCause.HANG.value:
            timeout_s = min(timeout_s, HANG_S + 10 * self._way_s(self._stop - self._first_step))
        return self._runner.replay(change, self._start, self._stop, timeout_s=timeout_s)

    def _reached(self, replay: ReplayedRun) -> bool:
        steps = replay.rows["step"]
        if not len(steps):
            return False
        completed = replay.note is not None and replay.note.kind == "completed"
        return completed or bool(steps[-1] >= self._trouble.onset_step)

    def _not_again(self, unchanged: ReplayedRun) -> Diagnosis:
        """The identical replay did not crash: is it really identical?"""
        parted = first_difference(self._recorded, unchanged.rows, self._trouble.onset_step)
        if unchanged.timed_out and self._trouble.what == ExitCause.HANG.value:
            text = (
                "the identical replay stands still as well; where, is in the stacks of the run "
                "(logs/attempt_<n>/stacks_<rank>.txt)"
            )
            return Diagnosis(root_cause="unknown", confidence=0.0, because=text)
        if unchanged.timed_out or not self._reached(unchanged):
            text = "the identical replay did not reach the trouble within the time"
            return Diagnosis(root_cause="unknown", confidence=0.0, because=text)
        if parted is None and unchanged.is_exact:
            text = (
                "the identical replay, equal in every loss before the trouble, does not crash: it "
                "was the machine, or something outside the script"
            )
            return Diagnosis(root_cause="transient", confidence=0.9, because=text)
        why = unchanged.problem or f"its loss differs from step {parted} on"
        text = f"the replay does not crash, but it is not the recorded run ({why})"
        return Diagnosis(root_cause="unknown", confidence=0.2, because=text)

    def _look(self, unchanged: ReplayedRun, crash: int) -> StepFinding:
        """Inspects the first bad steps and the one before, whose update may be bad."""
        first = min(crash, self._trouble.onset_step) if self._is_sudden(crash) else crash
        bad_steps = range(first, crash + 1)
        if remaining_s(self._deadline) < MIN_REPLAY_S:
            return NOTHING
        steps = [step for step in (first - 1, *bad_steps) if step >= self._first_step]
        replay = self._replay(ReplayChange(name="inspection", experiment={"inspect": steps}))
        inspections = replay.inspections.items()
        finding = first_of({rank: finding_of(seen, bad_steps) for rank, seen in inspections})
        if finding.kind:
            return finding
        if finding.sample is None and any(nonfinite(replay.rows[replay.rows["step"] == crash])):
            cause = "the model's output is finite, the loss made of it is not"
            return StepFinding(module=LOSS, cause=cause)
        if finding.sample is not None:
            return finding
        return dataclasses.replace(
            exception_of(unchanged.note),
            rank=unchanged.rank if len(inspections) > 1 else None,
            rows=finding.rows,
            rows_before=finding.rows_before,
        )

    def _overflow_step(self, unchanged: ReplayedRun) -> int | None:
        """The step at which values left the range that FP32 can hold; None without one."""
        left = unchanged.rows["step"][nonfinite(unchanged.rows)]
        if not len(left) or self._fp32 is None or not len(self._fp32.rows):
            return None
        rows = self._fp32.rows
        reached = int(rows["step"][-1]) >= int(left[0])
        return int(left[0]) if reached and not nonfinite(rows).any() else None

    def _is_sudden(self, crash: int) -> bool:
        return crash - self._trouble.onset_step <= BEFORE_ONSET

    def _way_s(self, steps: int) -> float:
        """How long so many steps take, as far as that is known."""
        times = healthy(self._recorded, "step_time_s", self._trouble.onset_step)
        return float(np.median(times)) * steps if len(times) else 0.0

    def _check_way(self, rundir: RunDirectory) -> None:
        """Raises SupervisorError if a replay from the script's start would take too long."""
        way_s = self._way_s(self._trouble.onset_step)
        if way_s * len(CHANGES) > remaining_s(self._deadline):
            raise SupervisorError(
                f"{rundir.checkpoints}: no checkpoint from before step {self._trouble.onset_step}, "
                f"and replays from the start would take {way_s * len(CHANGES):.0f} s: give more "
                "with --budget-s, or set checkpoint.keep_last higher in the next run"
            )


_WHOLE = ("learning_rate", "optimizer_state", "weights")
"""Causes that do not lie in a single sample or module."""


def _outcome(change: str, crash: int | None, say: Callable[[str], None]) -> ReplayOutcome:
    say(f"{change}: " + ("did not crash" if crash is None else f"crashed at step {crash}"))
    return ReplayOutcome(change=change, crashed=crash is not None, at_step=crash)


def _exception_type(replay: ReplayedRun) -> str:
    return "" if replay.note is None else replay.note.exception


def _no_step(replay: ReplayedRun) -> str:
    lines = [line for line in replay.output.splitlines() if line.strip()]
    last = f" ({lines[-1].strip()[:200]})" if lines else ""
    why = "ran out of time" if replay.timed_out else f"ended with exit code {replay.returncode}"
    return (
        f"replay: the script made no step: it {why}{last}: run it with the files, packages and "
        "devices of the run"
    )
