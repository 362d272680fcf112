"""What a silent training mistake is: a proof of what happened in this run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import Module
from torch.optim import Optimizer

from supervisor.codes import Severity
from supervisor.training_state.registry import Registry
from supervisor.worker.mistakes.evidence.places import ScriptLine

if TYPE_CHECKING:
    from supervisor.worker.mistakes.evidence.loss_graph import LossGraph


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """A proved mistake.

    Attributes:
        fact: what happened in this run, one sentence with its figures.
        where: the script's line, or ``file:line``; None or empty where no line of it is known.
        names: modules or parameters that it is about.
        mend: how it is mended, one or two lines.
        severity: low is a question, which stands in the report alone: the script may mean it.
    """

    fact: str
    where: ScriptLine | str | None
    names: Sequence[str] = ()
    mend: str
    severity: Severity = Severity.HIGH


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardSeen:
    """A root forward that is about to run."""

    module: Module
    with_graph: bool
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class SeenSoFar:
    """What all mistakes may look at.

    Attributes:
        rank, world_size: of this process, among those that were started together.
        folder: of the run, which all ranks of a node share.
        updates: of the main optimizer, made so far.
        loss: on which a backward is about to be called, where it is one tensor.
        has_tensor_hooks: the script has hung something on a tensor, to be called in a backward.
        made_at: optimizers and schedulers → where the script has made them; kept by identity.
        steps_done: of the training, also after the first updates.
        idle_wrappers: the `DistributedDataParallel` of all ranks that have never run.
    """

    registry: Registry
    rank: int = 0
    world_size: int = 1
    folder: Path | None = None
    updates: int = 0
    loss: torch.Tensor | None = None
    has_tensor_hooks: Callable[[], bool] = bool
    idle_wrappers: Callable[[], Sequence[Any]] = tuple
    steps_done: Callable[[], int] = int
    made_at: list[tuple[str, Callable[[], object], ScriptLine]] = field(default_factory=list)

    def place_of(self, wanted: object) -> ScriptLine | None:
        return next((place for _, holder, place in self.made_at if holder() is wanted), None)

    def latest(self, kind: str) -> ScriptLine | None:
        return next((place for each, _, place in reversed(self.made_at) if each == kind), None)


class Mistake:
    """One kind. Each method is called in the training's thread, within a region of ours, while the
    first updates are made, and returns a finding where the proof is complete. It must not change
    anything, nor draw random numbers, nor hold tensors of the graph.

    Attributes:
        kind: in snake case; the name under which ``mistakes.on_purpose`` leaves it out.
        lasts: it is asked after the first updates, too: around evaluations, and of weights.
        follows_loaders: it is asked of each batch then, too.
        walks: it looks at the graph that `backward` gets.
        in_a_row: it needs updates in a row: one that was left out ends it.
        is_over: it can prove nothing more, and is asked no more.
    """

    kind: str
    lasts: bool = False
    follows_loaders: bool = False
    walks: bool = True
    in_a_row: bool = False
    is_over: bool = False

    def batch(self, seen: SeenSoFar, iterator: Any, batch: Any) -> Proof | None:
        """A data loader's iterator hands out a batch."""

    def forward(self, seen: SeenSoFar, call: ForwardSeen) -> Proof | None:
        """A root forward begins."""

    def forward_ended(self) -> None:
        """The same forward has returned or raised."""

    def backward(self, seen: SeenSoFar, graph: LossGraph | None) -> Proof | None:
        """A backward begins; `graph` where it is walked in this step."""

    def backward_ended(self, seen: SeenSoFar) -> None:
        """The same backward has returned."""

    def before_update(self, seen: SeenSoFar, optimizer: Optimizer) -> None:
        """An optimizer is about to step."""

    def updated(self, seen: SeenSoFar, optimizer: Optimizer, *, is_main: bool) -> Proof | None:
        """It has stepped, as the script asked for."""

    def exported(self, seen: SeenSoFar, module: Module, state: Mapping[str, Any]) -> None:
        """The script has asked for a module's ``state_dict``."""

    def loaded(
        self, seen: SeenSoFar, module: Module, state: Mapping[str, Any], *, is_strict: bool
    ) -> Proof | None:
        """It is about to load weights."""

    def interrupted(self) -> None:
        """An update was left out: what must follow in a row begins anew."""


MOMENTS = ("batch", "forward", "forward_ended", "backward", "backward_ended", "before_update",
           "updated", "exported", "loaded")  # fmt: skip


class LossMistake(Mistake):
    """One that the graph of the loss shows, in three steps and in each that is looked at."""

    times = 3
    _times = 0

    def find(self, graph: LossGraph) -> Any:
        """What proves it in this step; None where nothing does."""
        raise NotImplementedError

    def proof(self, seen: SeenSoFar, graph: LossGraph, found: Any) -> Proof | None:
        raise NotImplementedError

    def backward(self, seen: SeenSoFar, graph: LossGraph | None) -> Proof | None:
        if graph is None:
            return None
        found = self.find(graph)
        self._times += found is not None
        self.is_over = (
            self.is_over
            or self._times >= self.times
            or (seen.updates >= self.times - 1 and not self._times)
        )
        if found is None or self._times < self.times:
            return None
        return self.proof(seen, graph, found)
