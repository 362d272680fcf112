"""How far the training has come, and what is known of the step under way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from supervisor.worker.ground.autocast_context import AutocastContext
from supervisor.worker.ground.graphs_across import GraphsAcross
from supervisor.worker.ground.step_probe import StepProbe


@dataclass(slots=True)
class Progress:
    """Written by whoever answers the training hooks, read by every part.

    Attributes:
        probe: what was seen of the step under way.
        has_started: a module or an optimizer was seen in the live run.
        steps_done: steps of this training, those before a resume included.
        replayed: steps that a fast-forward has come to.
        last_batch: the newest batch of a loader.
        grads_matter: the step began with gradients of an earlier backward (accumulation).
        step_is_begun: a part of the step was computed before the forward of this boundary.
        at_update: boundaries are at the end of an update (`BoundaryClock`).
        update_result: what the update returns at whose end a boundary is; the script has it in no
            variable yet.
        tape_is_whole: the tape tells how the script came here, so a resume can be exact.
        loop_shift: updates of the script's own loop beyond `steps_done`: it began again, or had
            another number of ranks.
        is_counted: no tape tells how the script came here, but its updates were counted.
        tape_lost: why it does not, as a resume says it; empty while nothing special is known.
        backwards_of_last: backward calls of the last step.
        graphs: that the script keeps across updates.
        autocast: the context that the training is in.
    """

    probe: StepProbe
    has_started: bool = False
    steps_done: int = 0
    replayed: int = 0
    last_batch: Any = None
    grads_matter: bool = False
    step_is_begun: bool = False
    at_update: bool = False
    update_result: Any = None
    tape_is_whole: bool = True
    tape_lost: str = ""
    loop_shift: int = 0
    is_counted: bool = False
    backwards_of_last: int = 0
    graphs: GraphsAcross = field(default_factory=GraphsAcross)
    autocast: AutocastContext = field(default_factory=AutocastContext)

    def replays(self, steps: int) -> None:
        """A fast-forward has come to so many steps."""
        self.replayed = steps

    def boundaries_at_updates(self) -> None:
        """From here on the boundary of a step is at the end of its update."""
        self.at_update, self.step_is_begun = True, False

    def tape_is_broken(self, why: str = "") -> None:
        """From here on no resume is exact."""
        self.tape_is_whole = False
        self.tape_lost = self.tape_lost or why

    @property
    def position(self) -> int:
        """Steps done, live or replayed."""
        return max(self.steps_done, self.replayed)

    def has_begun(self) -> bool:
        """Whether a step was made or replayed."""
        return self.position > 0
