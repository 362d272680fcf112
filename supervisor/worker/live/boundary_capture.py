"""Gathers at a boundary all that a checkpoint holds."""

from __future__ import annotations

from collections.abc import Callable

from supervisor.pipeline import Pipeline
from supervisor.storage.checkpoints.section_files import PIPELINE
from supervisor.storage.run.script_files import ScriptFiles
from supervisor.worker.capture.checkpoint_writer import CapturedCheckpoint
from supervisor.worker.capture.whole_state import WholeState


class BoundaryCapture:
    """The one place where a checkpoint of the training is put together; its state is live.

    Args:
        judge_waiting: has the steps judged whose judgement waits for later ones.
    """

    def __init__(
        self,
        *,
        whole_state: WholeState,
        script_files: ScriptFiles,
        judge_waiting: Callable[[], object],
        pipeline: Pipeline,
    ) -> None:
        self._whole_state = whole_state
        self._script_files = script_files
        self._judge_waiting = judge_waiting
        self._pipeline = pipeline

    def puts_off(self) -> bool:
        """Whether a checkpoint that is due had better wait for a later boundary."""
        return self._whole_state.puts_off()

    def take(self, step: int, reason: str) -> CapturedCheckpoint:
        """Returns what is to be saved now; the script's files are kept from here on."""
        self._judge_waiting()
        state, meta = self._whole_state.take()
        meta["script_files"] = self._script_files.begin_interval()
        return self._captured(step, state, meta, reason)

    def take_for_later(self, step: int, reason: str) -> CapturedCheckpoint:
        """Returns what may have to be saved when the process ends; its meta lacks `script_files`,
        and its place on the tape is only marked."""
        self._judge_waiting()
        state, meta = self._whole_state.take(for_later=True)
        return self._captured(step, state, meta, reason)

    def _captured(
        self, step: int, state: dict[str, object], meta: dict[str, object], reason: str
    ) -> CapturedCheckpoint:
        sections = {PIPELINE: self._pipeline.state_dict()}
        return CapturedCheckpoint(
            step=step, state=state, meta=meta, reason=reason, sections=sections
        )
