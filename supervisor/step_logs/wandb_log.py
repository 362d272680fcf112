"""Steps in Weights & Biases, one run for all attempts."""

from __future__ import annotations

from collections.abc import Mapping

from supervisor.errors import UsageError
from supervisor.step_logs.run_id import kept_id
from supervisor.storage.run.rundir import RunDirectory


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
