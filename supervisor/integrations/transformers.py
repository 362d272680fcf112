"""A callback for the `Trainer` of Hugging Face Transformers, and for TRL's."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from supervisor.integrations.observing import as_bad_as, call_at, observe_numbers
from supervisor.worker.run import observe


class TransformersCallback(TrainerCallback):
    """Observes the epoch of each step, and what an evaluation measured.

    On every rank, in the trainer's own hooks: ``Trainer(callbacks=[TransformersCallback()])``.

    Args:
        stop_at: end the training at an alert of this severity or a worse one (``critical``,
            ``high``, ``medium``, ``low``) by the trainer's own way, which saves and logs.

    Raises:
        UsageError: there is no such severity.
    """

    def __init__(self, *, stop_at: str | None = None) -> None:
        self._severities = as_bad_as(stop_at)
        self._stops = False

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any
    ) -> None:
        self._stops = False
        call_at(self._severities, self._stop)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any
    ) -> None:
        observe(epoch=state.epoch or 0.0)

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any
    ) -> None:
        observe_numbers(more.get("metrics") or {})

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any
    ) -> TrainerControl:
        control.should_training_stop = control.should_training_stop or self._stops
        return control

    def _stop(self) -> None:
        self._stops = True
