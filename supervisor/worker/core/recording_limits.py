"""What the user is told where the recording of a run comes to a limit."""

from __future__ import annotations

from supervisor.storage.steps.more_values import MAX_NAMES
from supervisor.storage.steps.step_rows import OBSERVED_SLOTS
from supervisor.worker.ground.progress import Progress
from supervisor.worker.ground.run_warnings import RunWarnings


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
