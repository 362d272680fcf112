"""Saves the scene of an anomalous step: its record and its batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from supervisor.detectors.base import Detector
from supervisor.events.step_events import BatchCaptured
from supervisor.records import Alert, Severity, StepRecord
from supervisor.settings import CaptureSettings
from supervisor.storage.checkpoints.checkpoints import CheckpointRing
from supervisor.storage.evidence.anomalies import AnomalyLog
from supervisor.storage.evidence.captures import CaptureStore
from supervisor.storage.files.private_files import open_private
from supervisor.storage.journal.journal import Journal
from supervisor.storage.run.rundir import RunDirectory
from supervisor.training_state.rng import RngState
from supervisor.worker.evidence.anomaly_figures import threshold_info
from supervisor.worker.evidence.model_scene import ModelScene

MIN_STEPS_APART = 20
MUCH_WORSE = 2.0
"""A step that much worse than the last captured one is captured without waiting."""


class AnomalyScene:
    """Writes one line an anomaly and, within the budget, one file a tensor of the batch.

    Args:
        detectors: gives those that watch the run now, whose lines an anomaly is told with.
    """

    def __init__(
        self,
        rundir: RunDirectory,
        rank: int,
        settings: CaptureSettings,
        ring: CheckpointRing,
        model_scene: ModelScene,
        detectors: Callable[[], Sequence[Detector]],
    ) -> None:
        self._rundir = rundir
        self._rank = rank
        self._store = CaptureStore(rundir, settings)
        self._log: AnomalyLog | None = None
        self._ring = ring
        self._model_scene = model_scene
        self._detectors = detectors
        self._last_capture = -MIN_STEPS_APART
        self._last_badness = 0.0

    def save(
        self, record: StepRecord, alerts: tuple[Alert, ...], batch: Any, journal: Journal
    ) -> None:
        """Called before the update of the anomalous step, at most once a step."""
        if self._log is None:
            self._log = AnomalyLog(self._rundir, self._rank)
        tensors = named_tensors(batch)
        folder = None
        badness = _badness(record, alerts)
        worse = badness > MUCH_WORSE * self._last_badness
        apart = record.step - self._last_capture >= MIN_STEPS_APART
        if tensors and (apart or worse):
            self._last_capture, self._last_badness = record.step, badness
            folder = self._store.save(
                record.step,
                self._rank,
                lambda path: _write(path, tensors),
                badness=badness,
            )
            if folder is not None:
                journal.write(BatchCaptured(step=record.step, path=folder.name))
        if is_grave(record, alerts):
            self._model_scene.at_anomaly(record.step, worse=worse, folder=folder)
        latest = self._ring.checkpoints()
        self._log.write(
            step=record.step,
            loss=record.loss if record.loss_seen else None,
            grad_norm=record.grad_norm if record.grad_norm_seen else None,
            batch_info={
                name: {
                    "shape": list(tensor.shape),
                    "path": None if folder is None else f"{folder.name}/{name}.pt",
                }
                for name, tensor in tensors.items()
            },
            model_checkpoint=latest[-1].path.name if latest else None,
            threshold_info=threshold_info(
                self._rundir, self._rank, record, alerts, self._detectors()
            ),
            data_dir=None if folder is None else folder.name,
        )


def named_tensors(batch: Any, prefix: str = "batch", depth: int = 4) -> dict[str, torch.Tensor]:
    """Returns the tensors of a batch under names made of their places."""
    if isinstance(batch, torch.Tensor):
        return {prefix: batch}
    found: dict[str, torch.Tensor] = {}
    if depth and isinstance(batch, Mapping):
        for key, value in batch.items():
            name = "".join(c if c.isalnum() else "_" for c in str(key))
            found.update(named_tensors(value, f"{prefix}_{name}", depth - 1))
    elif depth and isinstance(batch, (list, tuple)):
        for index, value in enumerate(batch):
            found.update(named_tensors(value, f"{prefix}_{index}", depth - 1))
    return found


def is_grave(record: StepRecord, alerts: tuple[Alert, ...]) -> bool:
    """Whether a step is worth a look at the whole model: not finite, or an alert of weight."""
    if record.has_nonfinite_loss or record.has_nonfinite_grad:
        return True
    return any(alert.severity in (Severity.CRITICAL, Severity.HIGH) for alert in alerts)


def _write(folder: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    for name, tensor in tensors.items():
        with open_private(folder / f"{name}.pt", "wb") as file:
            torch.save(tensor.detach().cpu().clone(), file)
    with open_private(folder / "rng.pt", "wb") as file:
        torch.save(RngState.capture(), file)


def _badness(record: StepRecord, alerts: tuple[Alert, ...]) -> float:
    if record.has_nonfinite_loss or record.has_nonfinite_grad:
        return math.inf
    ratios = [a.value / a.threshold for a in alerts if a.threshold and math.isfinite(a.value)]
    return max(ratios, default=1.0)
