"""A handler for Ignite's engines."""

from __future__ import annotations

from ignite.engine import Engine, Events

from supervisor.integrations.observing import as_bad_as, call_at, observe_numbers
from supervisor.worker.run import observe


class IgniteHandler:
    """Observes the epoch of each step, and the metrics of evaluators.

    ``IgniteHandler().attach(trainer, evaluator)`` before the trainer runs, on every rank.

    Args:
        stop_at: end the training at an alert of this severity or a worse one (``critical``,
            ``high``, ``medium``, ``low``) by `Engine.terminate`, which runs the end handlers.

    Raises:
        UsageError: there is no such severity.
    """

    def __init__(self, *, stop_at: str | None = None) -> None:
        self._severities = as_bad_as(stop_at)

    def attach(self, trainer: Engine, *evaluators: Engine) -> None:
        call_at(self._severities, trainer.terminate)
        trainer.add_event_handler(Events.ITERATION_STARTED, _observe_epoch)
        for evaluator in evaluators:
            evaluator.add_event_handler(Events.COMPLETED, _observe_metrics)


def _observe_epoch(engine: Engine) -> None:
    observe(epoch=engine.state.epoch)


def _observe_metrics(engine: Engine) -> None:
    observe_numbers({f"val_{name}": value for name, value in engine.state.metrics.items()})
