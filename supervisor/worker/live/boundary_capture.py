"""Gathers at a boundary all that a checkpoint holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from supervisor.storage.run.script_files import ScriptFiles
from supervisor.storage.steps.tape import TapeWriter
from supervisor.worker.capture.checkpoint_writer import CapturedCheckpoint
from supervisor.worker.capture.user_tensors import UserTensors
from supervisor.worker.core.part import SavePoint
from supervisor.worker.ground.progress import Progress
from supervisor.worker.ground.user_frames import call_under_way, user_frames


class BoundaryCapture:
    """The one place where a checkpoint of the training is put together; its state is live.

    Args:
        judge_waiting: judges the steps that wait; a treatment may be asked for.
        save: has all parts add what they save.
    """

    def __init__(
        self,
        *,
        judge_waiting: Callable[[], object],
        save: Callable[[SavePoint], None],
        held: UserTensors,
        tape: TapeWriter,
        script_files: ScriptFiles,
        progress: Progress,
    ) -> None:
        self._judge_waiting = judge_waiting
        self._save = save
        self._held = held
        self.tape = tape
        self.script_files = script_files
        self.progress = progress

    def puts_off(self) -> bool:
        """Whether a checkpoint that is due had better wait for a later boundary: the script keeps
        graphs across updates here, and will soon have none to keep."""
        graphs, steps = self.progress.graphs, self.progress.steps_done
        if not graphs.seen:
            return False
        return graphs.puts_off(self._held.find(user_frames(), call_under_way()), steps)

    def take(self, step: int, reason: str) -> CapturedCheckpoint:
        """Returns what is to be saved now; the script's files are kept from here on."""
        self._judge_waiting()
        point = self._point(for_later=False)
        point.note({"script_files": self.script_files.begin_interval()})
        return _captured(point, step, reason)

    def take_for_later(self, step: int, reason: str) -> CapturedCheckpoint:
        """Returns what may have to be saved when the process ends; its meta lacks `script_files`,
        and its place on the tape is only marked."""
        self._judge_waiting()
        return _captured(self._point(for_later=True), step, reason)

    def state_and_meta(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What a treatment is about to throw away; every step before is judged, and the windows of
        detectors and predictor are left out."""
        point = self._point(for_later=False)
        return point.state, point.meta

    def _point(self, *, for_later: bool) -> SavePoint:
        frames, call = user_frames(), call_under_way()
        held = self._held.find(frames, call)
        point = SavePoint(frames=frames, call=call, held=held, for_later=for_later)
        self._save(point)
        point.note({"tape_offset": self._tape_offset(for_later=for_later)})
        return point

    def _tape_offset(self, *, for_later: bool) -> int:
        """Length of the tape; -1 when it does not tell how the script came here. Behind all parts,
        which may have written to it."""
        if for_later:
            self.tape.mark()
            offset = self.tape.offset
        else:
            offset = self.tape.write_out()
        return offset if self.progress.tape_is_whole and not self.tape.is_full else -1


def _captured(point: SavePoint, step: int, reason: str) -> CapturedCheckpoint:
    return CapturedCheckpoint(
        step=step, state=point.state, meta=point.meta, reason=reason, sections=point.sections
    )
