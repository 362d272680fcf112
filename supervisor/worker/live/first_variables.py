"""The first look at the user's variables."""

from __future__ import annotations

from supervisor.worker.capture.user_tensors import UserTensors
from supervisor.worker.core.part import Arrived, Part, SavePoint
from supervisor.worker.ground.user_frames import user_frames


class FirstVariables(Part):
    """Has `UserTensors` remember what is there before the first step, or where a resume arrives."""

    name = "variables"

    def __init__(self, held: UserTensors) -> None:
        self._held = held

    def at_boundary(self, step: int) -> None:
        self.before_first_update()

    def before_first_update(self) -> None:
        if not self._held.has_begun:
            self._held.begin(user_frames())

    def save(self, point: SavePoint) -> None:
        point.note({"held_left_out": self._held.left_out})

    def goes_live(self, arrived: Arrived) -> None:
        self._held.begin(user_frames(), but=set(arrived.state.get("held", {})))
