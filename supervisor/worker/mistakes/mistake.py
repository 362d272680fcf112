"""What a silent training mistake is: a proof of what happened in this run."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch.nn import Module
from torch.optim import Optimizer

from supervisor.training_state.registry import Registry
from supervisor.worker.mistakes.places import ScriptLine

if TYPE_CHECKING:
    from supervisor.worker.mistakes.loss_graph import LossGraph


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """A proved mistake.

    Attributes:
        fact: what happened in this run, one sentence with its figures.
        where: ``file:line`` of the script; empty where no line of it is known.
        names: modules or parameters that it is about.
        mend: how it is mended, one or two lines.
    """

    fact: str
    where: str
    names: tuple[str, ...] = ()
    mend: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardSeen:
    """A root forward that is about to run."""

    module: Module
    with_graph: bool
    place: Callable[[], ScriptLine | None]


@dataclass(slots=True, kw_only=True)
class SeenSoFar:
    """What all mistakes may look at.

    Attributes:
        updates: of the lead, made so far.
        made_at: optimizers and schedulers → where the script has made them; kept by identity.
        walks: the loss's graph is walked at each backward of this step.
    """

    registry: Registry
    world_size: int = 1
    updates: int = 0
    walks: bool = True
    made_at: list[tuple[str, Callable[[], object], ScriptLine]]

    def place_of(self, wanted: object) -> ScriptLine | None:
        return next((place for _, holder, place in self.made_at if holder() is wanted), None)

    def latest(self, kind: str) -> ScriptLine | None:
        return next((place for each, _, place in reversed(self.made_at) if each == kind), None)


class Mistake(ABC):
    """One kind. Each method is called in the training's thread, within a region of ours, while the
    first updates are made, and returns a finding where the proof is complete. It must not change
    anything, nor draw random numbers, nor hold tensors of the graph.

    Attributes:
        kind: in snake case; the name under which ``mistakes.allow`` leaves it out.
    """

    kind: str

    def forward(self, seen: SeenSoFar, call: ForwardSeen) -> Proof | None:  # noqa: B027
        """A root forward begins."""

    def forward_ended(self) -> None:  # noqa: B027
        """The same forward has returned or raised."""

    def backward(self, seen: SeenSoFar, graph: LossGraph | None) -> Proof | None:  # noqa: B027
        """A backward begins; `graph` where it is walked in this step."""

    def backward_ended(self, seen: SeenSoFar) -> None:  # noqa: B027
        """The same backward has returned."""

    def before_update(self, seen: SeenSoFar, optimizer: Optimizer) -> None:  # noqa: B027
        """An optimizer is about to step."""

    def updated(  # noqa: B027
        self, seen: SeenSoFar, optimizer: Optimizer, *, is_lead: bool
    ) -> Proof | None:
        """It has stepped, as the script asked for."""

    def interrupted(self) -> None:  # noqa: B027
        """An update was left out: what must follow in a row begins anew."""
