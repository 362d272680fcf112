"""When the state is copied, and how the copy reaches the disk behind the training's back."""

from __future__ import annotations

import contextlib
import math
import queue
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from supervisor.codes import Warned
from supervisor.errors import CheckpointDamaged, CheckpointError
from supervisor.events.state_events import (
    CheckpointRejected,
    CheckpointSaved,
    CheckpointStable,
    WarningEvent,
)
from supervisor.settings import CheckpointSettings
from supervisor.storage.checkpoints.checkpoints import CheckpointRing
from supervisor.storage.checkpoints.pipeline_file import write_pipeline
from supervisor.storage.journal.journal import Journal
from supervisor.training_state.codec import read_state, write_state
from supervisor.training_state.snapshot import copy_state, state_bytes
from supervisor.training_state.state import digest, is_finite
from supervisor.worker.capture.save_interval import SaveInterval


class Checkpointer:
    """Saves when it is due, marks stable what healthy steps followed.

    The training waits for one copy in memory; a thread writes, checksums and publishes it. A save
    that falls due while the last is still being written waits for the next boundary.
    """

    def __init__(
        self,
        ring: CheckpointRing,
        settings: CheckpointSettings,
        journal: Journal,
        before_publishing: Callable[[], None],
    ) -> None:
        self._before_publishing = before_publishing
        self._ring = ring
        self._settings = settings
        self._journal = journal
        self._last_step = 0
        self._interval = SaveInterval(settings, time.monotonic())
        self._written_in_s = 0.0
        self._buffers: dict[str, Any] | None = None
        self._jobs: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._busy = threading.Event()
        self._unstable: list[int] = []
        self._abandoned: set[int] = set()
        with contextlib.suppress(CheckpointError):  # a folder that cannot be read has none to spare
            self._abandoned = {checkpoint.step for checkpoint in ring.abandoned()}
        self._is_late = False
        self._thread: threading.Thread | None = None
        self._warned_room = False

    @property
    def is_busy(self) -> bool:
        return self._busy.is_set()

    def is_free(self, step: int) -> bool:
        """Whether a save at `step` would neither wait nor take the place of an abandoned state."""
        return not self.is_busy and step not in self._abandoned

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
        if self._is_late or self._interval.is_measuring:
            return 0.0, math.inf
        every = self._settings.every_steps
        save = math.inf if every is None else float(step - step % every + every)
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
        return step % every == 0 or self._is_late

    def save(
        self,
        step: int,
        state: Mapping[str, Any],
        meta: dict[str, Any],
        reason: str,
        *,
        pipeline: Mapping[str, Any],
        wait: bool,
        usual_step_s: float = 0.0,
    ) -> float:
        """Copies `state` now and has it written; returns the seconds the training waited.

        Args:
            step: steps done at this boundary.
            state: live, from `TrainingState.capture`.
            meta: goes into the manifest; `digest` is added.
            pipeline: `Pipeline.state_dict` at this boundary.
            wait: return only when it is on disk (before leaving the process).
            usual_step_s: by which the next steps are measured; 0.0 if not known.
        """
        self._last_step = step
        self._is_late = False
        cost = self._hand_over(
            state, wait, lambda copied: self._write(step, copied, meta, reason, pipeline)
        )
        self._interval.begun(step, time.monotonic(), cost, usual_step_s)
        return cost

    def keep_abandoned(
        self, step: int, state: Mapping[str, Any], meta: dict[str, Any], reason: str, command: str
    ) -> None:
        """As `save`, for a state that a treatment is about to throw away.

        No other save takes its place or comes later for it; a disk without room costs a warning.

        Args:
            command: by which a person goes back to it, for the journal.
        """
        self._abandoned.add(step)
        self._hand_over(
            state,
            False,
            lambda copied: self._write_abandoned(step, copied, meta, reason, command),
        )

    def read_back(self, step: int) -> dict[str, Any]:
        """Returns the state saved at `step`, verified; waits until it is on disk.

        Raises:
            CheckpointError: it is not there, or damaged.
        """
        self._wait_idle()
        return read_state(self._ring.get(step).path)

    def _hand_over(
        self, state: Mapping[str, Any], wait: bool, write: Callable[[dict[str, Any]], None]
    ) -> float:
        """Copies `state` and has it written; returns the seconds the training waited."""
        started = time.perf_counter()
        wait = wait or not self._settings.background
        self._wait_idle()
        copied = copy_state(state, self._buffers)
        self._buffers = copied
        self._busy.set()
        if wait:
            write(copied)
        else:
            self._start_thread()
            self._jobs.put(partial(write, copied))
        return time.perf_counter() - started

    def healthy_at(self, step: int, last_trouble: int) -> None:
        """Marks checkpoints stable that enough healthy steps followed."""
        due = [s for s in self._unstable if step - s >= self._settings.stable_after_steps]
        for saved in due:
            self._unstable.remove(saved)
            if last_trouble >= saved - 1:
                self._ring.spoil(saved)  # trouble came after it
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
            self._thread.join()
            self._thread = None

    # --- the writing thread ------------------------------------------------------------------

    def _start_thread(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._work, name="supervisor-checkpoints", daemon=True
            )
            self._thread.start()

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                return
            try:
                job()
            except Exception as error:  # the training must not notice
                self._journal.write(WarningEvent(message=f"checkpoint: {error}"))

    def _wait_idle(self) -> None:
        while self._busy.is_set():
            time.sleep(0.002)

    def _write(
        self,
        step: int,
        state: dict[str, Any],
        meta: dict[str, Any],
        reason: str,
        pipeline: Mapping[str, Any],
    ) -> None:
        started = time.perf_counter()
        try:
            finite, bad = is_finite(state)
            if not finite:
                told = f"checkpoint of step {step} left out: {bad} is not finite"
                self._journal.write(WarningEvent(step=step, message=told))
                return
            self._publish(step, state, meta, reason, started, pipeline=pipeline)
            self._written_in_s = time.perf_counter() - started
            self._unstable.append(step)
            self._warn_of_room()
        except (CheckpointError, OSError) as error:
            told = f"checkpoint not saved: {error}"
            self._journal.write(WarningEvent(step=step, found=Warned.NOT_SAVED, message=told))
        finally:
            self._busy.clear()

    def _write_abandoned(
        self, step: int, state: dict[str, Any], meta: dict[str, Any], reason: str, command: str
    ) -> None:
        try:
            self._publish(
                step, state, meta, reason, time.perf_counter(), abandoned=True, command=command
            )
        except (CheckpointError, OSError) as error:
            told = f"{reason}: not kept: {error}"
            self._journal.write(WarningEvent(step=step, message=told))
        finally:
            self._busy.clear()

    def _publish(
        self,
        step: int,
        state: dict[str, Any],
        meta: dict[str, Any],
        reason: str,
        started: float,
        *,
        pipeline: Mapping[str, Any] | None = None,
        abandoned: bool = False,
        command: str | None = None,
    ) -> None:
        """Writes a copied state and tells the journal; `command` goes back to an abandoned one."""
        meta["digest"] = digest(state)
        self._before_publishing()
        kept = self._ring.save(
            step,
            partial(_fill, state, pipeline),
            reason=reason,
            meta=meta,
            estimated_bytes=state_bytes(state),
            abandoned=abandoned,
        )
        self._journal.write(
            CheckpointSaved(
                step=step,
                path=kept.path.name,
                reason=reason,
                bytes=kept.bytes,
                seconds=time.perf_counter() - started,
                abandoned=abandoned,
                command=command,
            )
        )

    def _mark_stable(self, step: int) -> None:
        try:
            self._ring.mark_stable(step)
        except CheckpointDamaged as error:
            self._journal.write(CheckpointRejected(step=step, reason=str(error)))
            return
        except CheckpointError:
            return  # retention has removed it: there are newer ones
        self._journal.write(CheckpointStable(step=step))

    def _warn_of_room(self) -> None:
        warning = self._ring.room_warning()
        if warning and not self._warned_room:
            self._warned_room = True
            self._journal.write(WarningEvent(message=f"disk: {warning}"))


def _fill(state: dict[str, Any], pipeline: Mapping[str, Any] | None, folder: Path) -> None:
    write_state(folder, state)
    if pipeline is not None:
        write_pipeline(folder, pipeline)
