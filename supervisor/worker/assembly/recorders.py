"""What a run writes down of itself at every step."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from supervisor.records import LOADS_ALL
from supervisor.storage.run.script_files import ScriptFiles
from supervisor.storage.run.set_aside import SetAside
from supervisor.storage.steps.applied_rates import AppliedRates
from supervisor.storage.steps.flight_recorder import FlightRecorder
from supervisor.storage.steps.more_values import MAX_NAMES
from supervisor.storage.steps.step_rows import OBSERVED_SLOTS
from supervisor.storage.steps.tape import TapeWriter
from supervisor.worker.assembly.ground import Ground, Task
from supervisor.worker.ground.interception_state import InterceptionState
from supervisor.worker.ground.progress import Progress
from supervisor.worker.ground.run_warnings import RunWarnings
from supervisor.worker.process.heartbeat import Heartbeat
from supervisor.worker.recording.attempt_files import AttemptFiles
from supervisor.worker.recording.file_sizes import FileSizes
from supervisor.worker.recording.loading.loading_proofs import LoadingProofs
from supervisor.worker.recording.replayed_files import ReplayedFiles
from supervisor.worker.recording.settled_files import SettledFiles
from supervisor.worker.samples.sample_guard import SampleGuard
from supervisor.worker.session.starting_point import ResumePoint


@dataclass(frozen=True, kw_only=True)
class Recorders:
    """What is written into the run directory, but for checkpoints."""

    tape: TapeWriter
    recorder: FlightRecorder
    rates: AppliedRates
    files: AttemptFiles
    heartbeat: Heartbeat
    loading: LoadingProofs
    samples: SampleGuard


def build_recorders(task: Task, ground: Ground, start: ResumePoint | None) -> Recorders:
    rundir, rank, settings = task.rundir, task.rank, task.settings
    limits = RecordingLimits(ground.progress, ground.warn)
    tape = TapeWriter(
        rundir.tape(rank),
        keep=start.tape_offset if start is not None else 0,
        budget=int(settings.fast_forward.tape_budget_mib * (1 << 20)),
        on_full=limits.tape_full,
    )
    recorder = FlightRecorder(
        rundir.steps(rank),
        task.attempt,
        on_left_out=limits.value_left_out,
        max_more_bytes=settings.observed_max_gib * (1 << 30),
        on_thinned=limits.values_thinned,
    )
    sizes = FileSizes(
        tape,
        rundir.root / f"appended{task.file_suffix}.json",
        begins_again=task.attempt > 1 and start is None,
    )
    record = ScriptFiles(rundir, rank, ground.progress.has_begun, limits.files_unknown)
    return Recorders(
        tape=tape,
        recorder=recorder,
        rates=AppliedRates(rundir.steps(rank)),
        files=_files_of(sizes, record, SetAside(rundir, rank)),
        heartbeat=Heartbeat(rundir.alive(rank)),
        loading=_build_loading(task, ground.interception),
        samples=SampleGuard(
            rundir.root / "bad_samples.jsonl",
            task.attempt,
            functools.partial(ground.warn, aloud=True),
            ground.interception,
            ground.progress,
        ),
    )


def _files_of(sizes: FileSizes, record: ScriptFiles, set_aside: SetAside) -> AttemptFiles:
    replayed = ReplayedFiles(set_aside, record)
    return AttemptFiles(
        sizes=sizes,
        record=record,
        replayed=replayed,
        settled=SettledFiles(replayed),
        set_aside=set_aside,
    )


def _build_loading(task: Task, interception: InterceptionState) -> LoadingProofs:
    skip_loading = task.settings.fast_forward.skip_loading
    return LoadingProofs(
        interception,
        promised=bool(skip_loading),
        is_noted=skip_loading is not False,
        may_leave_out=skip_loading is not False and task.order.way != LOADS_ALL,
    )


class RecordingLimits:
    """Each method is called by the part that comes to the limit, at most once each."""

    def __init__(self, progress: Progress, warn: RunWarnings) -> None:
        self._progress = progress
        self._warn = warn

    def value_left_out(self, name: str) -> None:
        self._warn(
            f"observed value '{name}': there are {MAX_NAMES} other names already: it and further "
            "new ones are judged by detectors, but not recorded: give values fewer names"
        )

    def values_thinned(self, apart: int) -> None:
        self._warn(
            f"observed values are near their disk budget: those beyond the first {OBSERVED_SLOTS} "
            f"names are kept of every {apart}th step only: raise observed_max_gib, or observe less",
            aloud=True,
        )

    def files_unknown(self, why: str) -> None:
        self._warn(f"what the script does with its files is not all recorded ({why})", aloud=True)

    def tape_full(self, why: str) -> None:
        if self._progress.tape_is_whole:  # else no resume is exact anyway
            step = self._progress.steps_done
            lost = f"what a resume must know is no longer recorded from step {step} on: {why}"
            self._progress.tape_is_broken(lost)
            self._warn(f"{lost}: later resumes are approximate", aloud=True)
