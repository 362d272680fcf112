"""A callback for Lightning's `Trainer`."""

from __future__ import annotations

import math
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from supervisor.integrations.observing import as_bad_as, call_at, observe_numbers
from supervisor.records import Alert
from supervisor.worker.run import observe, on_alert


class LightningCallback(Callback):
    """Observes the epoch of each step and what validation measured, and logs alerts.

    On every rank, in the trainer's own hooks: ``Trainer(callbacks=[LightningCallback()])``.

    Args:
        stop_at: end the fit at an alert of this severity or a worse one (``critical``, ``high``,
            ``medium``, ``low``), as an early stopping would: the trainer's end hooks run.
        log_alerts: write alerts to the trainer's loggers, as ``supervisor/<kind>``.

    Raises:
        UsageError: there is no such severity.
    """

    def __init__(self, *, stop_at: str | None = None, log_alerts: bool = True) -> None:
        self._severities = as_bad_as(stop_at)
        self._log_alerts = log_alerts

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        def stop() -> None:
            trainer.should_stop = True

        def log(alert: Alert) -> None:
            value = alert.value if math.isfinite(alert.value) else 1.0
            for logger in trainer.loggers:
                logger.log_metrics({f"supervisor/{alert.kind}": value}, step=alert.step)

        call_at(self._severities, stop)
        if self._log_alerts:
            on_alert(log)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        observe(epoch=trainer.current_epoch)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.sanity_checking:
            measured = trainer.logged_metrics | trainer.callback_metrics
            observe_numbers({name: measured[name] for name in measured if "val" in str(name)})
