"""Steps in MLflow, one run for all attempts."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from supervisor.errors import UsageError
from supervisor.step_logs.run_id import kept_id
from supervisor.storage.run.rundir import RunDirectory

EXPERIMENT = "training-supervisor"
AT_ONCE = 1000
"""Values that MLflow takes in one request."""
_NOT_ALLOWED = re.compile(r"[^\w\-. /:]")


class MlflowLog:
    """MLflow forgets nothing: a step that was trained again has two values, and the newest counts.

    Values that are not finite are left out.

    Args:
        address: of the tracking server or its store.

    Raises:
        UsageError: MLflow is not installed.
    """

    def __init__(self, address: str, rundir: RunDirectory) -> None:
        try:
            from mlflow import MlflowClient
            from mlflow.entities import Metric
        except ImportError as error:
            raise UsageError(
                "MLflow is missing: pip install 'training-supervisor[mlflow]'"
            ) from error
        self._metric = Metric
        self._client = MlflowClient(tracking_uri=address)
        self._waiting: list[Any] = []
        self._id = kept_id(rundir, "mlflow", lambda: self._create(rundir))
        self._client.set_terminated(self._id, status="RUNNING")

    def begin_again(self, step: int) -> None:
        """Nothing can be taken back."""

    def write(self, step: int, time_s: float, values: Mapping[str, float], *, row: int) -> None:
        """Adds one step; `time_s` in unix seconds."""
        for name, value in values.items():
            if math.isfinite(value):
                allowed = _NOT_ALLOWED.sub("_", name)
                self._waiting.append(self._metric(allowed, value, int(1000 * time_s), step))
        if len(self._waiting) >= AT_ONCE:
            self.flush()

    def write_text(self, step: int, name: str, text: str) -> None:
        """Becomes a tag of the run."""
        self._client.set_tag(self._id, _NOT_ALLOWED.sub("_", name), text[:5000])

    def flush(self) -> None:
        """Returns when everything is in the store."""
        waiting, self._waiting = self._waiting, []
        for start in range(0, len(waiting), AT_ONCE):
            self._client.log_batch(self._id, metrics=waiting[start : start + AT_ONCE])

    def close(self) -> None:
        self.flush()
        self._client.set_terminated(self._id, status="FINISHED")

    def _create(self, rundir: RunDirectory) -> str:
        known = self._client.get_experiment_by_name(EXPERIMENT)
        experiment = known.experiment_id if known else self._client.create_experiment(EXPERIMENT)
        run = self._client.create_run(experiment, run_name=rundir.root.resolve().name)
        return str(run.info.run_id)
