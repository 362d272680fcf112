"""What bad numbers leave behind, put right."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from supervisor.pipeline import Pipeline
from supervisor.training_state.model_state import heal_buffers
from supervisor.training_state.registry import Registry
from supervisor.training_state.snapshot import SnapshotRing
from supervisor.worker.capture.user_tensors import UserTensors
from supervisor.worker.ground.user_frames import user_frames


class Healing:
    """The rest of a rollback and of a skipped update: what lies beside the weights.

    Called by the training's own thread, on every rank.

    Args:
        warn: is told what was put right.
    """

    def __init__(
        self,
        *,
        pipeline: Pipeline,
        registry: Registry,
        snapshots: SnapshotRing,
        held: UserTensors,
        warn: Callable[[str], None],
    ) -> None:
        self._pipeline = pipeline
        self._registry = registry
        self._snapshots = snapshots
        self._held = held
        self._warn = warn

    def after_rollback(self, extras: Mapping[str, Any]) -> None:
        """Our own windows go back, and what the user's variables hold.

        Args:
            extras: of the snapshot that was restored, with ``held`` of its state.
        """
        self._pipeline.rolled_back(int(extras["pipeline_step"]))
        self._held.put_back_lasting(extras.get("held", {}), extras.get("held_look"))
        healed = self._held.heal(user_frames())
        if healed:
            self._warn(f"variables that were not finite were zeroed: {', '.join(healed)}")

    def put_back_held(self, saved: Mapping[str, Any]) -> None:
        """The newer weights are back after a rollback: so is what belongs to them.

        Args:
            saved: ``held`` of their checkpoint.
        """
        self._held.put_back_lasting(saved)

    def after_skip(self) -> None:
        """An update was left out; its forward may have brought NaN into running statistics."""
        snapshot = self._snapshots.newest()
        if snapshot is None:
            return
        for name, model in self._registry.models.items():
            healed = heal_buffers(model, snapshot.state["models"].get(name, {}))
            if healed:
                self._warn(
                    f"buffers that were not finite are those of step {snapshot.step} again: "
                    f"{', '.join(healed[:8])}"
                )
