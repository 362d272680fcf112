"""Tells alerts to the journal and the user's handlers, and has the scene of an anomaly saved."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from supervisor.errors import let_pass
from supervisor.events.step_events import AlertEvent
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
        journal: for what all ranks find alike.
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
        self.journal = journal
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
                except BaseException as error:  # the user's own code
                    if not isinstance(error, Exception):  # it ends the training by `sys.exit`
                        let_pass(error)
                        raise
                    self.handlers.remove(handler)
                    self._warn(f"alert handler {handler!r} raised {error!r}: switched off")
            if not self.journal.write(_event(alert, record.step, self._probes.places_of(alert))):
                continue
            self._log.write(alert)
            anomalous = anomalous or alert.category in ("loss", "gradient")
        if anomalous and self._scene_part.is_on:
            with self._scene_part:
                self._scene.save(record, alerts, self._progress.last_batch, self.journal)


def _event(alert: Alert, step: int, places: Sequence[Mapping[str, Any]]) -> AlertEvent:
    return AlertEvent(
        step=step,
        detector=alert.detector,
        severity=alert.severity,
        category=alert.category,
        cause=alert.cause,
        message=alert.message,
        value=alert.value,
        threshold=alert.threshold,
        metadata=alert.metadata,
        alert_kind=alert.kind,
        subject=alert.subject,
        fact=alert.fact,
        places=tuple(places),
    )
