"""Saves the scene of an anomalous step: its record, its batch, its gradients and values."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from supervisor.detectors.base import Detector
from supervisor.detectors.base.signal_anomaly import (
    GradientAnomalyDetector,
    LossAnomalyDetector,
    SignalAnomalyDetector,
)
from supervisor.detectors.statistics.robust_window import RobustWindow
from supervisor.errors import UsageError, pass_on
from supervisor.events.step_events import BatchCaptured
from supervisor.numerics.gradient_flow import gradient_flow
from supervisor.numerics.model_health import model_health
from supervisor.ranks import FIRST_RANK
from supervisor.records import Alert, Severity, StepRecord
from supervisor.settings import CaptureSettings
from supervisor.storage.checkpoints.checkpoints import CheckpointRing
from supervisor.storage.evidence import AnomalyLog, CaptureStore
from supervisor.storage.files.private_files import open_private, write_json
from supervisor.storage.journal.journal import Journal
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps.flight_reader import FlightReader
from supervisor.training_state.rng import RngState
from supervisor.worker.core.part import Ended, Part
from supervisor.worker.core.run_health import MAX_WAITING
from supervisor.worker.core.worker_context import WorkerContext

FILE = "gradient_flow.json"
MIN_SCENES_APART = 100
"""Each look reads all parameters and gradients once: rare even in a run full of anomalies."""
MOST_FINDINGS = 100


class ModelScene(Part):
    """Writes ``report/gradient_flow.json`` at an anomaly, and at the end of the process.

    Never called in a calm step. Only rank 0 writes; replicas hold the same. A look that fails is
    told once, and there is no other.
    With several models, a model's name comes before each layer's path.
    """

    name = "scene of the end"

    def __init__(self, context: WorkerContext) -> None:
        self._rundir = context.rundir
        self._registry = context.registry
        self._warn = context.warn
        self._is_off = context.rank != FIRST_RANK
        self._last_step: int | None = None

    def at_anomaly(self, step: int, *, worse: bool, folder: Path | None) -> None:
        """Called between backward and update of an anomalous step.

        Args:
            step: of the anomaly.
            worse: than those before: looked at however soon it comes.
            folder: of the captured batch, which gets a copy; None without one.
        """
        if worse or not self._is_recent(step):
            places = [self._rundir.report, *([folder] if folder is not None else [])]
            self._look(step, "anomaly", places)
            self._last_step = step

    def ends(self, how: Ended) -> None:
        """The last step made; an anomaly shortly before is not replaced."""
        step = how.steps - 1
        if step >= 0 and not self._is_recent(step):
            self._look(step, "end", [self._rundir.report])

    def _is_recent(self, step: int) -> bool:
        return self._last_step is not None and step - self._last_step < MIN_SCENES_APART

    def _look(self, step: int, moment: str, places: Sequence[Path]) -> None:
        if self._is_off:
            return
        try:
            seen = self._seen(step, moment)
            if seen["layers"] or seen["unhealthy"]:
                self._rundir.make(self._rundir.report)
                for folder in places:
                    write_json(folder / FILE, seen)
        except BaseException as error:  # a model of any kind, a device without memory, a full disk
            pass_on(error)
            self._is_off = True
            self._warn(f"gradient flow of step {step}: {type(error).__name__}: {error}")

    def _seen(self, step: int, moment: str) -> dict[str, Any]:
        models = self._registry.models
        layers: list[dict[str, Any]] = []
        unhealthy: list[dict[str, Any]] = []
        for name, model in models.items():
            prefix = f"{name}." if len(models) > 1 else ""
            findings = model_health(model).findings
            unhealthy += [found.to_dict() | {"name": prefix + found.name} for found in findings]
            with contextlib.suppress(UsageError):  # the gradients are gone already
                flow = gradient_flow(model).layers
                if all(layer.zero_share == 1.0 for layer in flow):
                    continue  # they were zeroed, or belong to steps that were only replayed
                layers += [layer.to_dict() | {"name": prefix + layer.name} for layer in flow]
        return {
            "step": step,
            "moment": moment,
            "layers": layers,
            "unhealthy": unhealthy[:MOST_FINDINGS],
        }


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


WINDOW = 50
"""Steps that figures are of where no detector judges the signal: the detectors' own default."""


def threshold_info(
    rundir: RunDirectory,
    rank: int,
    record: StepRecord,
    alerts: Iterable[Alert],
    detectors: Sequence[Detector],
) -> dict[str, Any]:
    """Returns ``loss`` and ``grad_norm`` → their figures, and alert's kind → its own figures.

    Figures are of the steps before this one that the signal's detector looks at, as the flight
    recorder has them; the threshold is drawn with that detector's settings.

    Raises:
        OSError, RunDirectoryError: the flight recorder cannot be read.
    """
    with FlightReader(rundir.steps(rank)) as reader:
        judges = {
            "loss": next((d for d in detectors if isinstance(d, LossAnomalyDetector)), None),
            "grad_norm": next(
                (d for d in detectors if isinstance(d, GradientAnomalyDetector)), None
            ),
        }
        longest = max(WINDOW, *(judge.window for judge in judges.values() if judge), 0)
        rows = reader.read(reader.rows() - longest - 2 * MAX_WAITING - 1)
    rows = rows[rows["step"] < record.step]
    info: dict[str, Any] = {
        name: signal_figures(rows[name], getattr(record, name), judge)
        for name, judge in judges.items()
    }
    for alert in alerts:
        info[alert.kind] = {"threshold": alert.threshold, **dict(alert.metadata)}
    return info


def signal_figures(
    before: np.ndarray, value: float, judge: SignalAnomalyDetector | None
) -> Mapping[str, float]:
    """Returns median, mad, mean, std and threshold of the steps before, and the relative change.

    Args:
        before: oldest first; what is not finite is left out.
        value: of the anomalous step.
        judge: the detector that watches this signal; None if there is none, then no line is drawn.
    """
    size = WINDOW if judge is None else judge.window
    known = [float(v) for v in before if math.isfinite(v)][-size:]
    window, logs = RobustWindow(size), RobustWindow(size)
    for old in known:
        window.add(old)
        logs.add(math.log(max(old, 1e-30)))
    change = math.nan
    if known and known[-1] != 0 and math.isfinite(value):
        change = (value - known[-1]) / abs(known[-1])
    return {
        "median": window.median,
        "mad": window.mad,
        "mean": window.mean,
        "std": window.std,
        "threshold": _line(judge, window, logs) if judge and known else math.nan,
        "relative_change": change,
    }


def _line(judge: SignalAnomalyDetector, window: RobustWindow, logs: RobustWindow) -> float:
    """The rule of `SignalAnomalyDetector`: in the log domain while all is positive."""
    if judge.fixed is not None:
        return judge.fixed
    if window.lowest >= 0:
        rise = max(judge.k * logs.sigma, math.log1p(judge.min_rise))
        return math.exp(min(logs.median + rise, 700.0))
    rise = max(judge.k * window.sigma, judge.min_rise * max(abs(window.median), window.sigma))
    return window.median + rise
