"""Treatments that the parent orders for a new attempt, by the reason for which one ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.actions.activation_checkpointing import ActivationCheckpointing
from supervisor.actions.base import carry_out
from supervisor.records import Cause, Decision
from supervisor.worker.clinic import Pending

if TYPE_CHECKING:
    from supervisor.worker.session import Session


class OrderedTreatments:
    """Carries them out where the attempt begins, and writes the same receipts as the ladder's."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def at_start(self) -> None:
        """An attempt from nothing: its models are met at their first forward, a boundary."""
        session = self._session
        if session.order.fp32:
            self._wait(
                "fp32_fallback", Cause.NONFINITE, "ordered after repeated numerical failures"
            )
        if session.order.checkpoint_activations:
            self._wait("checkpoint_activations", Cause.RESOURCES, "ordered after memory ran out")

    def fp32(self, step: int) -> None:
        """Switches the FP32 fallback on, at a boundary."""
        self._apply("fp32_fallback", Decision(step=step, actions=("fp32_fallback",)))

    def activation_checkpointing(self, step: int, *, was_on: bool) -> None:
        """Switches it on at a resume's boundary, behind the state that was put back.

        Args:
            was_on: in the attempt that the checkpoint is of: no treatment, then, but a part of its
                state. The model's flags may have come with it, what they stand for has not.
        """
        session = self._session
        action = session.clinic.actions["checkpoint_activations"]
        decision = self._decision(
            action.name, step, Cause.RESOURCES, "ordered after memory ran out"
        )
        if was_on:
            with session.shield("activation checkpointing"):
                for model in session.registry.models.values():
                    ActivationCheckpointing(model).switch_on()
        elif session.order.checkpoint_activations:
            session.clinic.apply_now(action, decision)

    def _wait(self, name: str, cause: Cause, reason: str) -> None:
        clinic = self._session.clinic
        clinic.pending.append(Pending(clinic.actions[name], self._decision(name, 0, cause, reason)))

    def _apply(self, name: str, decision: Decision) -> None:
        session = self._session
        carry_out(session.clinic.actions[name], session.action_context(decision))

    def _decision(self, name: str, step: int, cause: Cause, reason: str) -> Decision:
        return Decision(step=step, actions=(name,), cause=cause, reason=reason, source="order")
