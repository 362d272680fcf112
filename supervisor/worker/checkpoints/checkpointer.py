"""When the state is copied, and that the copy reaches the disk behind the training's back."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import queue
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from supervisor.codes import Warned
from supervisor.errors import CheckpointDamaged, CheckpointError, StateNotFinite
from supervisor.events.state_events import (
    CheckpointRejected,
    CheckpointSaved,
    CheckpointStable,
    StateFound,
    WarningEvent,
)
from supervisor.held_memory import BUFFER, HeldMemory, return_to_system
from supervisor.settings import CheckpointSettings
from supervisor.storage.journal.journal import Journal
from supervisor.storage.run.healing_memory import takes_dead_ranks_place
from supervisor.training_state.device_copies import DONE
from supervisor.training_state.host_memory import HOST_MEMORY
from supervisor.training_state.snapshot import Snapshot, begin_copy, copy_bytes
from supervisor.uncollected import uncollected
from supervisor.worker.checkpoints.checkpoint_writer import CapturedCheckpoint, CheckpointWriter
from supervisor.worker.checkpoints.save_interval import SaveInterval
from supervisor.worker.core.budget import own_time
from supervisor.worker.process.patches_process import leave_signals_to_the_script

PATIENCE_S = 10.0
"""Without `background`, for a checkpoint of several ranks: they need not stand at the same place of
the script, and one that waits here may be what another waits for in a collective."""
_UNTOLD_S = 2.0
"""Of the wait at the end; a longer one is told."""


class Checkpointer:
    """Saves when it is due, marks stable what healthy steps followed.

    The training waits for one copy, in memory or where that has no room on disk; a thread has
    `writer` make a checkpoint of it. A save that
    falls due while the last is still being written waits for the next boundary.
    """

    def __init__(
        self,
        writer: CheckpointWriter,
        settings: CheckpointSettings,
        journal: Journal,
        *,
        memory: HeldMemory,
        puts_off: bool = True,
        interval: SaveInterval | None = None,
    ) -> None:
        """`memory`: without room in it a state is copied to the disk instead. `puts_off`: a save
        that is wanted while another is being written comes later; without it the training waits,
        as several ranks do, which must save at the same step."""
        self._writer = writer
        self._settings = settings
        self._journal = journal
        self._memory = memory
        self._puts_off = puts_off
        self._last_step = 0
        self._due_at = math.inf  # not every multiple of `every_steps` is a boundary
        self._interval = interval or SaveInterval(settings, time.monotonic())
        self._written_in_s = 0.0
        self._buffers: dict[str, Any] | None = None
        self._size = 0  # of what they hold
        self._copying = DONE
        self._device_s = 0.0  # for which a copy held up the devices
        self._kept: CapturedCheckpoint | None = None
        self._jobs: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._busy = threading.Event()
        self._unstable: list[int] = []
        self._abandoned: set[int] = set()
        with contextlib.suppress(CheckpointError):  # a folder that cannot be read has none to spare
            self._abandoned = set(writer.abandoned_steps())
        self._is_late = False
        self._thread: threading.Thread | None = None
        self._warned_room = False
        self._waits = not settings.background

    @property
    def is_busy(self) -> bool:
        return self._busy.is_set()

    @property
    def last_step(self) -> int:
        """Of the newest checkpoint that was begun in this process; 0 for none."""
        return self._last_step

    @property
    def kept(self) -> CapturedCheckpoint | None:
        """What `keep` has copied last; None once another save has needed its memory."""
        return self._kept

    def is_free(self, step: int) -> bool:
        """Whether a save at `step` would neither wait nor take the place of an abandoned state."""
        return not self.is_busy and step not in self._abandoned

    def has_saved(self, step: int) -> bool:
        """Whether another process of this rank has saved this step and died afterwards."""
        return takes_dead_ranks_place() and step in self._writer.steps()

    def may_save(self, step: int) -> bool:
        """Whether a save that is wanted is made now, at `step`."""
        return self.is_free(step) if self._puts_off else step not in self._abandoned

    def measure(self, step: int, now: float) -> None:
        """Takes note of what the last save has cost the steps, once it is on disk.

        Args:
            step: steps done.
            now: `time.monotonic()`.
        """
        if self._interval.is_measuring and not self._busy.is_set():
            self._interval.written(step, now, self._written_in_s)

    def next_look(self, step: int) -> tuple[float, float]:
        """When `is_due`, `healthy_at` or `measure` have something to do next, at the earliest.

        Args:
            step: of this boundary.

        Returns:
            Steps done and `time.monotonic()`, whichever comes first; a step of 0 is the next one.
        """
        every = self._settings.every_steps
        save = math.inf if every is None else float(step - step % every + every)
        self._due_at = save
        if self._is_late or self._interval.is_measuring:
            return 0.0, math.inf
        if self._unstable:
            save = min(save, self._unstable[0] + self._settings.stable_after_steps)
        return save, self._interval.next_at if every is None else math.inf

    def is_due(self, step: int) -> bool:
        """Whether the boundary after `step` steps is one to save at."""
        if step <= self._last_step or self._busy.is_set():
            return False
        every = self._settings.every_steps
        if every is None:
            return time.monotonic() >= self._interval.next_at
        if step in self._abandoned:
            self._is_late = self._is_late or step % every == 0
            return False
        return step % every == 0 or self._is_late or step >= self._due_at

    def save(
        self,
        captured: CapturedCheckpoint,
        *,
        wait: bool,
        usual_step_s: float = 0.0,
        gathered_in_s: float = 0.0,
    ) -> float:
        """Copies the state now and has it written; returns the seconds the training waited.

        Args:
            captured: at this boundary, its state live.
            wait: return only when it is on disk (before leaving the process).
            usual_step_s: by which the next steps are measured; 0.0 if not known.
            gathered_in_s: what it took to gather `captured`, for which the training waited, too.
        """
        self._last_step = captured.step
        self._is_late = False
        cost = gathered_in_s + self._hand_over(captured, wait, self._write) + self._device_s
        self._interval.begun(captured.step, time.monotonic(), cost, usual_step_s)
        return cost

    def put_off(self) -> None:
        """A save that is due is made later; the next boundary is asked."""
        self._is_late = True

    def keep_abandoned(self, captured: CapturedCheckpoint) -> None:
        """As `save`, for a state that a treatment is about to throw away.

        No other save takes its place or comes later for it; a disk without room costs a warning.
        """
        self._abandoned.add(captured.step)
        self._hand_over(captured, False, self._write_abandoned)

    def keep(self, captured: CapturedCheckpoint) -> None:
        """Copies the state into the memory of the last save, and writes nothing.

        Called while `is_free`. `write_kept` makes a checkpoint of it if the process ends.
        """
        self._drop_kept()  # a copy that is interrupted is none
        try:
            kept = self._copied(captured)
            self._copying.wait()  # after an error of the device nobody could
            self._kept = kept
        except (CheckpointError, OSError) as error:
            self._not_saved(captured.step, error)

    def write_kept(self, meta: Mapping[str, Any]) -> None:
        """Writes what `keep` has copied, at the end of the process.

        Args:
            meta: entries that were not known yet when it was kept.
        """
        kept, self._kept = self._kept, None
        if kept is not None:
            self._busy.set()
            self._write(dataclasses.replace(kept, meta={**kept.meta, **meta}))

    def fit(self) -> None:
        """Gives its copy back if there is no room for it any more."""
        if self._buffers is None or self._busy.is_set():
            return
        if not self._memory.allows(BUFFER, self._size):
            self._drop_kept()
            self._give_back()

    def before(self, step: int) -> Snapshot | None:
        """Returns the newest state on disk from before `step` that can be read, or None."""
        self._wait_idle()
        with contextlib.suppress(CheckpointError):
            for saved in reversed([s for s in self._writer.steps() if s < step]):
                with contextlib.suppress(CheckpointError):
                    state = self._writer.read(saved)
                    return Snapshot(step=saved, held=state, extras={"pipeline_step": saved})
        return None

    def _hand_over(
        self,
        captured: CapturedCheckpoint,
        wait: bool,
        write: Callable[[CapturedCheckpoint], None],
    ) -> float:
        """Copies the state and has it written; returns the seconds the training waited."""
        started = own_time()
        self._wait_idle()
        self._drop_kept()
        try:
            captured = self._copied(captured)
        except (CheckpointError, OSError) as error:
            self._not_saved(captured.step, error)
            return own_time() - started
        self._busy.set()
        if wait or (self._waits and self._puts_off):
            write(captured)
        else:
            self._start_thread()
            self._jobs.put(partial(write, captured))
            if self._waits and not self._wait_idle(PATIENCE_S):
                self._waits = False
                self._warn_of_places(captured.step)
        return own_time() - started

    @uncollected()
    def _copied(self, captured: CapturedCheckpoint) -> CapturedCheckpoint:
        """Returns a live state as it is now: in memory, or where there is no room in a file.

        Raises:
            CheckpointError: the disk refuses.
        """
        self._size = size = copy_bytes(captured.state)
        if not self._memory.allows(BUFFER, size):
            self._give_back()
            try:
                return self._writer.stream(captured)
            finally:
                return_to_system()
        self._memory.holds(BUFFER, size, 1)
        last_s = None if self._copying is DONE else self._copying.device_s()
        self._buffers, self._copying = begin_copy(captured.state, self._buffers)
        self._device_s = self._copying.device_s() if last_s is None else last_s
        if told := HOST_MEMORY.news():
            self._journal.write(WarningEvent(step=captured.step, message=told))
        return dataclasses.replace(captured, state=self._buffers)

    def _give_back(self) -> None:
        if self._buffers is not None:
            self._buffers = None
            self._memory.holds(BUFFER, 0, 0)

    def _drop_kept(self) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            _remove(kept)

    def _not_saved(self, step: int, error: Exception) -> None:
        told = f"checkpoint not saved: {error}"
        self._journal.write(WarningEvent(step=step, found=Warned.NOT_SAVED, message=told))

    def healthy_at(self, step: int, last_trouble: int) -> None:
        """Marks checkpoints stable that enough healthy steps followed."""
        due = [s for s in self._unstable if step - s >= self._settings.stable_after_steps]
        for saved in due:
            self._unstable.remove(saved)
            if last_trouble >= saved - 1:
                self._writer.spoil(saved)  # trouble came after it
                continue
            self._start_thread()
            self._jobs.put(lambda saved=saved: self._mark_stable(saved))  # type: ignore[misc]

    def close(self, *, ripen: tuple[int, int] | None = None) -> None:
        """Waits for what is being written. `ripen`: (step, last trouble) at a healthy end."""
        if ripen is not None:
            step, trouble = ripen
            for saved in [s for s in self._unstable if trouble < s - 1 and s < step]:
                self._start_thread()
                self._jobs.put(lambda saved=saved: self._mark_stable(saved))  # type: ignore[misc]
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join(_UNTOLD_S)
            if self._thread.is_alive():
                told = "checkpoints are still being written: the process ends when they are saved"
                self._journal.write(StateFound(found=None, message=told, aloud=True))
            self._thread.join()
            self._thread = None
        self._drop_kept()

    # --- the writing thread ------------------------------------------------------------------

    def _start_thread(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._work, name="supervisor-checkpoints", daemon=True
            )
            self._thread.start()

    def _work(self) -> None:
        leave_signals_to_the_script()
        while True:
            job = self._jobs.get()
            if job is None:
                return
            try:
                job()
            except Exception as error:  # the training must not notice
                self._journal.write(WarningEvent(message=f"checkpoint: {error}"))
            del job  # and with it what was written

    def _wait_idle(self, patience_s: float = math.inf) -> bool:
        """Returns whether nothing is being written any more."""
        until = time.monotonic() + patience_s
        while self._busy.is_set():
            if time.monotonic() > until:
                return False
            time.sleep(0.002)
        return True

    def _write(self, captured: CapturedCheckpoint) -> None:
        step, started = captured.step, time.thread_time()
        try:
            self._publish(captured)
            self._written_in_s = time.thread_time() - started
            self._unstable.append(step)
            self._warn_of_room()
        except StateNotFinite as error:
            self._journal.write(WarningEvent(step=step, message=str(error)))
        except (CheckpointError, OSError) as error:
            self._not_saved(step, error)
        finally:
            _remove(captured)
            self._busy.clear()

    def _write_abandoned(self, captured: CapturedCheckpoint) -> None:
        try:
            self._publish(captured)
        except (CheckpointError, OSError) as error:
            told = f"{captured.reason}: not kept: {error}"
            self._journal.write(WarningEvent(step=captured.step, message=told))
        finally:
            _remove(captured)
            self._busy.clear()

    def _publish(self, captured: CapturedCheckpoint) -> None:
        """Has a copied state written, and tells the journal."""
        started = time.perf_counter()
        self._copying.wait()
        kept = self._writer.write(captured)
        self._journal.write(
            CheckpointSaved(
                step=captured.step,
                path=kept.path.name,
                reason=captured.reason,
                bytes=kept.bytes,
                seconds=time.perf_counter() - started,
                abandoned=captured.abandoned,
                command=captured.command,
            )
        )

    def _mark_stable(self, step: int) -> None:
        try:
            self._writer.mark_stable(step)
        except CheckpointDamaged as error:
            self._journal.write(CheckpointRejected(step=step, reason=str(error)))
            return
        except CheckpointError:
            return  # retention has removed it: there are newer ones
        self._journal.write(CheckpointStable(step=step))

    def _warn_of_places(self, step: int) -> None:
        told = (
            f"checkpoint.background: the ranks needed more than {PATIENCE_S:.0f} s to save step "
            f"{step}: from here on the training does not wait for checkpoints"
        )
        self._journal.write(WarningEvent(step=step, message=told))

    def _warn_of_room(self) -> None:
        warning = self._writer.room_warning()
        if warning and not self._warned_room:
            self._warned_room = True
            self._journal.write(WarningEvent(message=f"disk: {warning}"))


def _remove(captured: CapturedCheckpoint) -> None:
    """Its file is a checkpoint's by now, or nobody's."""
    if captured.file is not None:
        shutil.rmtree(captured.file.parent, ignore_errors=True)
