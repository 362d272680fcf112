"""Treatments that the parent orders for a new attempt, by the reason for which one ended."""

from __future__ import annotations

from supervisor.actions.activation_checkpointing import ActivationCheckpointing
from supervisor.actions.controls import Controls, Ramp
from supervisor.codes import DecisionSource
from supervisor.pipeline import Pipeline
from supervisor.records import Cause, Decision, WorkerOrder
from supervisor.training_state.registry import Registry
from supervisor.worker.core.part import Arrived, Part, SavePoint
from supervisor.worker.ground.error_barrier import ErrorBarrier
from supervisor.worker.treatment.action_runner import ActionRunner

OUT_OF_MEMORY = "ordered after memory ran out"


class OrderedTreatments(Part):
    """Carries them out where the attempt begins, and writes the same receipts as the ladder's."""

    name = "ordered treatments"

    def __init__(
        self,
        order: WorkerOrder,
        *,
        controls: Controls,
        registry: Registry,
        runner: ActionRunner,
        pipeline: Pipeline,
        barrier: ErrorBarrier,
    ) -> None:
        self._order = order
        self._pipeline = pipeline
        self._controls = controls
        self._registry = registry
        self._runner = runner
        self._barrier = barrier

    def from_nothing(self) -> None:
        """No checkpoint: models are met at their first forward only, which is a boundary."""
        self.be_careful()
        if self._order.fp32:
            self._wait(
                "fp32_fallback", Cause.NONFINITE, "ordered after repeated numerical failures"
            )
        if self._order.checkpoint_activations:
            self._wait("checkpoint_activations", Cause.RESOURCES, OUT_OF_MEMORY)

    def be_careful(self) -> None:
        """Takes on the order's conservative settings: the rate, and the batch size after memory
        ran out; or leaves the training alone.

        Called at the checkpoint's step, or before the first one of a start from nothing.
        """
        order, controls = self._order, self._controls
        if order.resigned:
            self._pipeline.resign()
        if order.lr_factor != 1.0 and order.careful_steps:
            controls.lr_factor = order.lr_factor
            controls.ramp = Ramp(order.lr_factor, 1.0, order.careful_steps)
        controls.fp32 = controls.fp32 or order.fp32
        controls.batch_factor = min(controls.batch_factor, order.batch_factor)

    def save(self, point: SavePoint) -> None:
        point.note({"controls": self._controls.state_dict()})

    def after_state(self, arrived: Arrived) -> list[str]:
        self._controls.load_state_dict(arrived.meta["controls"])
        was_on = self._controls.checkpoint_activations
        self._activation_checkpointing(arrived.step, was_on=was_on)
        return []

    def goes_live(self, arrived: Arrived) -> None:
        self.be_careful()

    def fp32(self, step: int) -> None:
        """Switches the FP32 fallback on, at a boundary."""
        decision = Decision(step=step, actions=("fp32_fallback",))
        self._runner.run_untold("fp32_fallback", decision)

    def _activation_checkpointing(self, step: int, *, was_on: bool) -> None:
        """Switches it on at a resume's boundary, behind the state that was put back.

        Args:
            was_on: in the attempt that the checkpoint is of: no treatment, then, but a part of its
                state. The model's flags may have come with it, what they stand for has not.
        """
        if was_on:
            with self._barrier("activation checkpointing"):
                for model in self._registry.models.values():
                    ActivationCheckpointing(model).switch_on()
        elif self._order.checkpoint_activations:
            name = "checkpoint_activations"
            self._runner.run(name, _decision(name, step, Cause.RESOURCES, OUT_OF_MEMORY))

    def _wait(self, name: str, cause: Cause, reason: str) -> None:
        self._runner.wait(name, _decision(name, 0, cause, reason))


def _decision(name: str, step: int, cause: Cause, reason: str) -> Decision:
    by_parent = DecisionSource.ORDER
    return Decision(step=step, actions=(name,), cause=cause, reason=reason, source=by_parent)
