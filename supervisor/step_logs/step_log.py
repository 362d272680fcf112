"""What a log of steps is, which ones a config asks for, and the logs of each program."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from supervisor.errors import UsageError
from supervisor.settings import LogSettings
from supervisor.step_logs.run_id import kept_id
from supervisor.storage.files.private_files import make_private
from supervisor.storage.run.rundir import RunDirectory

_INSTALL = "pip install 'training-supervisor[{}]'"


class StepLog(Protocol):
    """Appends the steps of a run where another program reads them.

    Opened in a process of its own, once for each start of the parent.
    """

    def begin_again(self, step: int) -> None:
        """Values of `step` and later that were written before are no longer true."""

    def write(self, step: int, time_s: float, values: Mapping[str, float], *, row: int) -> None:
        """Adds one step; `time_s` in unix seconds, `row` rises with every call."""

    def write_text(self, step: int, name: str, text: str) -> None:
        """Adds a text, where the other program shows texts; it may come again."""

    def flush(self) -> None:
        """Returns when everything that was written will outlive this process."""

    def close(self) -> None:
        """Ends the log; called once."""


def missing_package(settings: LogSettings) -> str | None:
    """Returns what has to be installed for these settings, in a sentence; None if nothing."""
    for name in asked_for(settings):
        if importlib.util.find_spec(name) is None:
            return f"log.{name}: {name} is missing: {_INSTALL.format(name)}"
    return None


def asked_for(settings: LogSettings) -> Iterator[str]:
    """Yields the names of the logs that are on."""
    if settings.tensorboard:
        yield "tensorboard"
    if settings.wandb:
        yield "wandb"
    if settings.mlflow:
        yield "mlflow"


def open_log(name: str, settings: LogSettings, rundir: RunDirectory) -> StepLog:
    """Opens a log to append to what an earlier process wrote.

    Raises:
        UsageError: its package is missing.
        Exception: it cannot be written; each package has errors of its own.
    """
    match name:
        case "wandb":
            return WandbLog(settings.wandb, rundir)
        case "mlflow":
            return MlflowLog(settings.mlflow, rundir)
    return TensorboardLog(rundir.root / "tensorboard")


class TensorboardLog:
    """Appends to a folder of event files.

    Raises:
        UsageError: TensorBoard is not installed.
        OSError: the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError as error:
            raise UsageError(
                "TensorBoard is missing: pip install 'training-supervisor[tensorboard]'"
            ) from error
        self._event, self._session = event_pb2.Event, event_pb2.SessionLog
        self._summary = summary_pb2.Summary
        make_private(folder)
        self._writer = EventFileWriter(str(folder))

    def begin_again(self, step: int) -> None:
        """From here on only what follows counts: TensorBoard drops earlier values from `step` on.

        Called before the first step of each attempt, and after each rollback.
        """
        start = self._session(status=self._session.START)
        self._writer.add_event(self._event(step=step, session_log=start))

    def write(self, step: int, time_s: float, values: Mapping[str, float], *, row: int) -> None:
        """Adds one step; `time_s` in unix seconds."""
        scalars = [self._summary.Value(tag=n, simple_value=v) for n, v in values.items()]
        summary = self._summary(value=scalars)
        self._writer.add_event(self._event(wall_time=time_s, step=step, summary=summary))

    def write_text(self, step: int, name: str, text: str) -> None:
        """Adds a text to the page TEXT."""
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.types_pb2 import DT_STRING
        from tensorboard.plugins.text import metadata

        value = self._summary.Value(
            tag=name,
            metadata=metadata.create_summary_metadata(display_name=name, description=""),
            tensor=TensorProto(dtype=DT_STRING, string_val=[text.encode()]),
        )
        self._writer.add_event(self._event(step=step, summary=self._summary(value=[value])))

    def flush(self) -> None:
        """Returns when everything is in the file."""
        self._writer.flush()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._writer.close()

    def __enter__(self) -> TensorboardLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class WandbLog:
    """W&B's own step is the row: it rises, and rows that are told twice are dropped there.

    The step of the training is the value `step`, the axis of all others. W&B forgets nothing: a
    step that was trained again is there twice, with its `attempt`.

    Raises:
        UsageError: W&B is not installed.
    """

    def __init__(self, project: str, rundir: RunDirectory) -> None:
        try:
            import wandb
        except ImportError as error:
            raise UsageError(
                "Weights & Biases is missing: pip install 'training-supervisor[wandb]'"
            ) from error
        self._run = wandb.init(
            project=project,
            id=kept_id(rundir, "wandb"),
            name=rundir.root.resolve().name,
            resume="allow",
            dir=str(rundir.root),
            settings=wandb.Settings(console="off", silent=True, x_disable_stats=True),
        )
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def begin_again(self, step: int) -> None:
        """Nothing can be taken back."""

    def write(self, step: int, time_s: float, values: Mapping[str, float], *, row: int) -> None:
        """Adds one step; `time_s` in unix seconds."""
        self._run.log({"step": step, "time": time_s, **values}, step=row)

    def write_text(self, step: int, name: str, text: str) -> None:
        """Stands in the run's summary."""
        self._run.summary[name] = text

    def flush(self) -> None:
        """W&B sends by itself."""

    def close(self) -> None:
        self._run.finish()


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
