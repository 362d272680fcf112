"""What a checkpoint holds of data sets.

Data that the script has computed with its model, features for a second training or labels: a replay
computes them with weights that are not trained. The checkpoint holds them, because variables lead
to them; so they come back as soon as a loader asks for them, and what it then gives is compared
with the recorded run like any other batch.

And what streams have told of where they stand.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from supervisor.training_state.census.reach import Reach
from supervisor.training_state.held_values import put_back, storages
from supervisor.training_state.tensors import storage_of
from supervisor.worker.ground.user_frames import user_frames


class RecordedData:
    """Puts values of a checkpoint into a data set.

    Tensors alone: what the script takes out of them as arrays comes off the tape.

    Args:
        saved: path → tensor or array, in its plain form.
        told: see `LoadingProofs.told_states`; kept as an attribute.
    """

    def __init__(self, saved: Mapping[str, Any], told: Mapping[str, str] | None = None) -> None:
        self._saved = saved
        self.told = told or {}

    def put_into(self, data: Any) -> bool:
        """Called during a replay, within a region; returns whether the data set had any of them."""
        own = storages(place.value for place in Reach({"data": {"set": data}}))
        frames = user_frames()
        inside = {
            place.path
            for place in Reach(frames)
            if place.path in self._saved and storage_of(place.value) in own
        }
        if not inside:
            return False
        return not put_back(frames, {path: self._saved[path] for path in inside})
