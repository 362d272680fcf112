"""The parent's metrics: from its journal and the steps it sees to Prometheus."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from supervisor.errors import ConfigError, SupervisorError
from supervisor.events.event import JournalEvent
from supervisor.parent.metrics.reporter import Reporter
from supervisor.parent.metrics.run_figures import RunFigures, render
from supervisor.parent.metrics.trainer_status import TrainerStatus, is_asked, status_of
from supervisor.parent.process.launch import LaunchSpec
from supervisor.records import CrashRisk, StepRecord
from supervisor.settings import CheckpointSettings, RunSettings
from supervisor.storage.checkpoints.checkpoints import CheckpointRing
from supervisor.storage.run.rundir import RunDirectory

if TYPE_CHECKING:
    from supervisor.parent.metrics.metrics_output import MetricsFile, MetricsServer


class Metrics:
    """Serves and writes what the config asks for; without either it does nothing.

    Attributes:
        url: where they are served; empty if they are not.

    Raises:
        ConfigError: the port is in use, or the file cannot be written.
    """

    def __init__(self, spec: LaunchSpec, settings: RunSettings) -> None:
        self._figures: RunFigures | None = None
        self._server: MetricsServer | None = None
        self._reporters: list[Reporter] = []
        self._failed: list[str] = []
        self.url = ""
        has_status = is_asked(os.environ)
        if settings.metrics_port is None and not settings.metrics_textfile and not has_status:
            return
        run_dir = spec.run_dir.absolute()
        self._figures = RunFigures(
            run_dir.name, spec.target, checkpoint_s=_newest_checkpoint(run_dir)
        )
        if settings.metrics_textfile:
            self._reporters.append(self._open_file(settings.metrics_textfile))
        if has_status:
            self._reporters.append(TrainerStatus(os.environ, self._report))
        try:
            self._server = self._listen(settings.metrics_address, settings.metrics_port)
        except ConfigError:
            self.close()
            raise
        self.url = self._server.url if self._server else ""

    def saw(self, events: Sequence[JournalEvent], attempt: int) -> None:
        """Takes in the journal's next events; never raises."""
        try:
            if self._figures is not None:
                self._figures.saw(events)
            for reporter in self._reporters:
                reporter.start()
        except Exception as error:  # whoever writes to the journal has other things to do
            self._failed.append(f"metrics: {type(error).__name__}: {error}")

    def stepped(self, records: Sequence[StepRecord], risk: CrashRisk | None) -> None:
        """Takes in the next steps, and the risk after them."""
        if self._figures is not None and records:
            self._figures.stepped(records, risk)

    def problems(self) -> list[str]:
        """Returns what failed since the last call."""
        failed, self._failed = self._failed, []
        return [*failed, *filter(None, (reporter.problem() for reporter in self._reporters))]

    def close(self) -> list[str]:
        """Writes the last figures and stops listening; returns what failed since `problems`."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for reporter in self._reporters:
            reporter.close()
        return self.problems()

    def _document(self) -> str:
        assert self._figures is not None
        return render(self._figures.metrics())

    def _report(self) -> dict[str, Any] | None:
        figures = self._figures
        if figures is None or figures.reports_itself:
            return None
        return status_of(figures.metrics(), figures.state, figures.total_steps)

    def _has_stepped(self) -> bool:
        return self._figures is not None and self._figures.has_stepped

    def _listen(self, address: str, port: int | None) -> MetricsServer | None:
        if port is None:
            return None
        from supervisor.parent.metrics.metrics_output import MetricsServer  # 20 ms of imports

        try:
            return MetricsServer(address, port, self._document, self._has_stepped)
        except OSError as error:
            raise ConfigError(
                f"metrics_port: {address}:{port}: {error.strerror or error}: give another port, 0 "
                "for a free one, or a metrics_textfile"
            ) from error

    def _open_file(self, text: str) -> MetricsFile:
        from supervisor.parent.metrics.metrics_output import MetricsFile

        path = Path(text).expanduser()
        if path.suffix != ".prom":
            raise ConfigError(
                f"metrics_textfile: {text}: does not end with .prom: node_exporter reads no other"
            )
        try:
            return MetricsFile(path, self._document)
        except OSError as error:
            raise ConfigError(
                f"metrics_textfile: {text}: {error.strerror or error}: give a file in a folder "
                "that is there and can be written"
            ) from error


def metrics_for(spec: LaunchSpec) -> tuple[Metrics, str | None]:
    """Returns the metrics of a run, and why there are none.

    A run that is continued, by a scheduler perhaps, does not fail for a port that is in use.

    Raises:
        ConfigError: they cannot be as the config asks, and the run is a new one.
    """
    try:
        return Metrics(spec, spec.settings), None
    except ConfigError as error:
        if not spec.is_resume:
            raise
        return Metrics(spec, RunSettings()), str(error)


def _newest_checkpoint(run_dir: Path) -> float | None:
    try:
        found = CheckpointRing(
            RunDirectory(run_dir).checkpoints, CheckpointSettings()
        ).checkpoints()
    except (SupervisorError, OSError):
        return None
    return max((checkpoint.time for checkpoint in found), default=None)
