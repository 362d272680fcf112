"""The log of anomalous steps, ``anomalies/anomalies_rank_<r>.jsonl``."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from supervisor.storage.files.line_file import LineFile, to_line
from supervisor.storage.run.rundir import RunDirectory


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
