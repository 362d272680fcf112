"""The first look at the user's variables."""

from __future__ import annotations

from supervisor.worker.capture.user_tensors import UserTensors
from supervisor.worker.ground.boundary_listener import BoundaryListener
from supervisor.worker.ground.user_frames import user_frames


class FirstVariables(BoundaryListener):
    """Has `UserTensors` remember what is there before the first step."""

    name = "variables"

    def __init__(self, held: UserTensors) -> None:
        self._held = held

    def at_boundary(self, step: int) -> None:
        self.before_first_update()

    def before_first_update(self) -> None:
        if not self._held.has_begun:
            self._held.begin(user_frames())
