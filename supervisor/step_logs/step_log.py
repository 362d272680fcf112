"""What a log of steps is, and which ones a config asks for."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from typing import Protocol

from supervisor.settings import LogSettings
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
            from supervisor.step_logs.wandb_log import WandbLog

            return WandbLog(settings.wandb, rundir)
        case "mlflow":
            from supervisor.step_logs.mlflow_log import MlflowLog

            return MlflowLog(settings.mlflow, rundir)
    from supervisor.step_logs.tensorboard_log import TensorboardLog

    return TensorboardLog(rundir.root / "tensorboard")
