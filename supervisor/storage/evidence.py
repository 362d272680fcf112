"""What is kept of anomalous steps."""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from supervisor.settings import CaptureSettings
from supervisor.storage.files import file_system as aside
from supervisor.storage.files.file_system import FileSystem
from supervisor.storage.files.json_files import LineFile, build_record, parse_json, to_line
from supervisor.storage.files.private_files import make_private, write_json
from supervisor.storage.run.rundir import RunDirectory

CAPTURE_JSON = "capture.json"
_MIB = 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """A captured batch on disk.

    Attributes:
        path: its folder; ``capture.json`` in it holds the fields below.
        step, rank: of the anomaly.
        time: when it was captured, unix seconds.
        badness: how bad the step was; larger is worse, infinite for NaN.
        bytes: size of its files.
    """

    path: Path
    step: int
    rank: int
    time: float
    badness: float
    bytes: int


class CaptureStore:
    """Keeps the newest and the worst captures; the mildest of the others go first.

    Failures are never raised; `problem` holds the last one.
    """

    def __init__(
        self,
        rundir: RunDirectory,
        settings: CaptureSettings,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.problem = ""
        self._folder = rundir.captures
        self._settings = settings
        self._clock = clock

    def save(
        self, step: int, rank: int, write: Callable[[Path], None], *, badness: float
    ) -> Path | None:
        """Saves what `write` puts into the folder that it is called with.

        Returns:
            The capture's folder; None if captures are off, if it failed, or if it does not fit and
            is milder than what fills the budget.
        """
        if not self._settings.enabled:
            return None
        now = self._clock()
        stamp = datetime.fromtimestamp(now, timezone.utc).strftime("%Y%m%dT%H%M%S_%f")
        path = self._folder / f"step_{step}_rank_{rank}_{stamp}"
        staged = aside.aside_path(self._folder, aside.STAGED, step)
        try:
            self._sweep()
            make_private(staged)
            write(staged)
            capture = Capture(
                path=path,
                step=step,
                rank=rank,
                time=now,
                badness=math.inf if math.isnan(badness) else badness,
                bytes=sum(file.stat().st_size for file in staged.rglob("*") if file.is_file()),
            )
            if not self._make_room(capture):
                return None
            write_json(staged / CAPTURE_JSON, capture)
            os.replace(staged, path)
        except Exception as error:
            self.problem = f"{path}: the batch was not captured: {error}"
            return None
        finally:
            shutil.rmtree(staged, ignore_errors=True)
        return path

    def captures(self) -> list[Capture]:
        """Returns all captures, the oldest first."""
        found = []
        for path in self._folder.glob(f"step_*/{CAPTURE_JSON}"):
            try:
                fields = parse_json(path.read_bytes())
                found.append(build_record(Capture, {**fields, "path": str(path.parent)}))
            except (OSError, ValueError, TypeError, RecursionError):
                continue
        return sorted(found, key=lambda capture: (capture.time, capture.path.name))

    def _sweep(self) -> None:
        for path in self._folder.glob(".staged-*"):
            if aside.is_left_over(FileSystem(), path):
                shutil.rmtree(path, ignore_errors=True)

    def _make_room(self, new: Capture) -> bool:
        """Removes captures until `new` fits; False if it is not worth that."""
        budget = self._settings.budget_mib * _MIB
        if new.bytes > budget:
            self.problem = f"{new.path}: {new.bytes / _MIB:.0f} MiB exceed capture.budget_mib"
            return False
        kept = sorted(self.captures(), key=lambda capture: (capture.badness, capture.time))
        if kept and kept[-1].badness > new.badness and kept[-1].bytes + new.bytes > budget:
            return False
        while kept and sum(capture.bytes for capture in kept) + new.bytes > budget:
            shutil.rmtree(kept.pop(0).path, ignore_errors=True)
        return True


class AnomalyLog:
    """Writes one rank's anomalies, one JSON object a line. One writer a file."""

    def __init__(
        self, rundir: RunDirectory, rank: int, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._lines = LineFile(rundir.anomalies(rank))
        self._rank = rank
        self._clock = clock

    def write(
        self,
        *,
        step: int,
        loss: float | None,
        grad_norm: float | None,
        batch_info: Mapping[str, Any] | None = None,
        model_checkpoint: Path | str | None = None,
        threshold_info: Mapping[str, Any] | None = None,
        data_dir: Path | str | None = None,
    ) -> None:
        """Appends one anomaly; NaN and infinities as "nan", "inf" and "-inf", for `float`.

        Args:
            step: the anomalous step.
            loss, grad_norm: as in its `StepRecord`; None for what was not seen.
            batch_info: name of a tensor of the batch → its shape and the path of its file.
            model_checkpoint: the latest checkpoint, of the model before this step.
            threshold_info: median, MAD, threshold, mean and std of loss and of gradient norm, and
                both relative changes.
            data_dir: where `CaptureStore` put the batch; None if it did not.

        Raises:
            OSError: the disk refuses.
        """
        stamp = datetime.fromtimestamp(self._clock(), timezone.utc).isoformat()
        line = {
            "step": step,
            "rank": self._rank,
            "timestamp": stamp,
            "loss": loss,
            "grad_norm": grad_norm,
            "batch_info": batch_info or {},
            "model_checkpoint": None if model_checkpoint is None else str(model_checkpoint),
            "threshold_info": threshold_info or {},
            "data_dir": None if data_dir is None else str(data_dir),
        }
        self._lines.append(to_line(line))

    def close(self) -> None:
        self._lines.close()
