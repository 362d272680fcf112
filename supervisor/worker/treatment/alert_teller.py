"""Tells alerts to the journal and the user's handlers, and has the scene of an anomaly saved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from supervisor.records import Alert, StepRecord
from supervisor.storage.journal.journal import AlertLog, Journal
from supervisor.worker.evidence.anomaly_scene import AnomalyScene
from supervisor.worker.ground.error_barrier import ErrorBarrier
from supervisor.worker.ground.progress import Progress
from supervisor.worker.ground.run_warnings import RunWarnings
from supervisor.worker.probes.probes import Probes


class AlertTeller:
    """Called for each judged step that has alerts.

    Attributes:
        handlers: the user's alert handlers; one that raises is dropped.
    """

    def __init__(
        self,
        journal: Journal,
        log: AlertLog,
        *,
        handlers: list[Callable[[Alert], None]],
        probes: Probes,
        scene: AnomalyScene,
        progress: Progress,
        barrier: ErrorBarrier,
        warn: RunWarnings,
    ) -> None:
        self.handlers = handlers
        self._journal = journal
        self._log = log
        self._probes = probes
        self._scene = scene
        self._scene_part = barrier("scene of an anomaly")
        self._progress = progress
        self._warn = warn

    def tell(self, record: StepRecord, alerts: tuple[Alert, ...]) -> None:
        """Tells the alerts of one step, before its update where it is judged in time."""
        anomalous = False
        for alert in alerts:
            for handler in list(self.handlers):
                try:
                    handler(alert)
                except Exception as error:  # the user's own code
                    self.handlers.remove(handler)
                    self._warn(f"alert handler {handler!r} raised {error!r}: switched off")
            places = self._probes.places_of(alert)
            more = {"places": places} if places else {}
            if not self._journal.write("alert", step=record.step, **_fields(alert), **more):
                continue
            self._log.write(alert)
            anomalous = anomalous or alert.category in ("loss", "gradient")
        if anomalous and self._scene_part.is_on:
            with self._scene_part:
                self._scene.save(record, alerts, self._progress.last_batch, self._journal)


def _fields(alert: Alert) -> dict[str, Any]:
    fields = alert.to_dict()
    del fields["step"]
    fields["alert_kind"] = fields.pop("kind")
    return fields
