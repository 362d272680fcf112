"""Looks for mistakes while the first updates are made, and tells each kind once."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn import Module
from torch.optim import Optimizer

from supervisor.by_identity import ByIdentity
from supervisor.codes import Cause, Severity
from supervisor.records import Alert, StepRecord
from supervisor.settings import MistakeSettings
from supervisor.uncollected import uncollected
from supervisor.worker.core.breakers import Breakers
from supervisor.worker.core.progress import RunWarnings
from supervisor.worker.core.worker_context import WorkerContext
from supervisor.worker.judging.step_judge import AlertTeller
from supervisor.worker.mistakes.catalogue import KINDS
from supervisor.worker.mistakes.evidence.loss_graph import LossGraph, TooLarge
from supervisor.worker.mistakes.evidence.mistake import (
    MOMENTS,
    ForwardSeen,
    Mistake,
    Proof,
    SeenSoFar,
)
from supervisor.worker.mistakes.evidence.places import script_place

WALKED = frozenset((0, 1, 2, 10, 19))
"""Updates before which the graph is walked."""
LAST = 100
"""Updates that are watched. Most kinds are over long before."""
FORWARDS, BACKWARDS = 8, 4
"""Of one kind within one update: no more of them are looked at. Rollouts make thousands."""
WAKINGS, AWAKE = 3, 8
"""Later evaluations that wake the watch, and for how many updates."""


class MistakeWatch:
    """Called by `Live`, which asks `is_on` first. An error switches it off, and nothing else.

    It watches an attempt that begins at the first step: after a resume or a rollback it is off, and
    an update that was left out is no evidence. After `LAST` updates it sleeps: an evaluation wakes
    it for a moment, and weights that are loaded are looked at.

    Args:
        tells: this process is the one that tells; others look without a word.
        stop: reason → ends the run at the next boundary.

    Attributes:
        is_on: it is to be told of forwards, backwards and updates.
        sleeps: it is to be told of evaluations (`evaluated`).
        follows_loaders: it is to be told of batches while it sleeps.
        is_enabled: it is to be told of weights.
    """

    def __init__(
        self,
        settings: MistakeSettings,
        seen: SeenSoFar,
        alerts: AlertTeller,
        *,
        tells: bool,
        warn: RunWarnings,
        breakers: Breakers,
        stop: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self._settings = settings
        self._kinds: list[Mistake] = [
            kind() for kind in KINDS if settings.enabled and kind.kind not in settings.on_purpose
        ]
        self._seen = seen
        self._tells = tells
        self._alerts = alerts
        self._warn = warn
        self._stop = stop
        self._part = breakers("mistakes", when_off=self._turn_off)
        self._step = -1
        self._last = LAST
        self._wakings = self._backwards = 0
        self._forwards: ByIdentity[Module, dict[tuple[bool, bool], int]] = ByIdentity()
        self.sleeps = self.follows_loaders = False
        self._sort()
        self.is_on = self.is_enabled

    @classmethod
    def of(
        cls, context: WorkerContext, alerts: AlertTeller, idle_wrappers: Callable[[], Sequence[Any]]
    ) -> MistakeWatch:
        """The worker's own. `idle_wrappers`: see `SeenSoFar`."""
        progress, call_state, place = context.progress, context.call_state, context.place
        return cls(
            context.settings.mistakes,
            SeenSoFar(
                registry=context.registry,
                rank=place.rank,
                world_size=place.world_size,
                folder=context.rundir.mistakes(context.attempt),
                idle_wrappers=idle_wrappers,
                steps_done=lambda: progress.steps_done,
                has_tensor_hooks=lambda: call_state.has_tensor_hooks,
            ),
            alerts,
            tells=place.is_first_rank and not context.is_experiment,
            warn=context.warn,
            breakers=context.breakers,
            stop=context.schedule.ask_to_stop_saved,
        )

    def _sort(self) -> None:
        """Who has to be told of a moment; most kinds look at one or two."""
        self.is_enabled = bool(self._kinds)
        self._of: dict[str, list[tuple[Mistake, Callable[..., Proof | None]]]] = {
            name: [(kind, getattr(kind, name)) for kind in self._kinds if _looks_at(kind, name)]
            for name in MOMENTS
        }

    def _drop(self, mistake: Mistake) -> None:
        mistake.forward_ended()
        self._kinds.remove(mistake)
        self.is_enabled = bool(self._kinds)
        for name, asked in self._of.items():
            self._of[name] = [each for each in asked if each[0] is not mistake]

    # --- moments -----------------------------------------------------------------------------

    def add(self, mistake: Mistake) -> None:
        """Adds a kind of the user's own; does nothing once the first updates are made."""
        if self.is_on and mistake.kind not in self._settings.on_purpose:
            self._kinds.append(mistake)
            self._sort()

    def begin_with(self, mistake: Mistake) -> None:
        """As `add`, before anything has happened, also where nothing is looked for."""
        self.is_on = True
        self.add(mistake)

    def is_kind(self, name: str) -> bool:
        return name in {*(kind.kind for kind in KINDS), *(kind.kind for kind in self._kinds)}

    def meant(self, name: str) -> None:
        """The script says that it means this kind."""
        for kind in [kind for kind in self._kinds if kind.kind == name]:
            self._drop(kind)

    def made(self, kind: str, found: Any) -> None:
        """The script has made an optimizer or a scheduler."""
        if self.is_on and kind in ("optimizer", "scheduler"):
            with self._part:
                place = script_place()
                if place is not None and len(self._seen.made_at) < LAST:
                    self._seen.made_at.append((kind, weakref.ref(found), place))

    def batch(self, iterator: Any, batch: Any) -> None:
        """A data loader's iterator hands out a batch."""
        self._ask("batch", self._seen, iterator, batch)

    def forward(
        self, module: Module, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> None:
        if not self._of["forward"]:
            return
        with self._part:
            with_graph = torch.is_grad_enabled()
            counts = self._forwards.get(module)
            if counts is None:
                self._forwards[module] = counts = {}
            kind = (module.training, with_graph)
            counts[kind] = counts.get(kind, 0) + 1
            if counts[kind] > FORWARDS:
                return
            call = ForwardSeen(module=module, with_graph=with_graph, args=args, kwargs=kwargs or {})
        self._ask("forward", self._seen, call)

    def forward_ended(self) -> None:
        self._ask("forward_ended")

    def evaluated(
        self, module: Module, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> None:
        """A forward without gradients begins, while it sleeps."""
        self._wakings += 1
        self._last = self._seen.updates + AWAKE
        self.sleeps, self.is_on = False, True
        self.forward(module, args, kwargs)

    def backward(self, roots: Any) -> None:
        graph, seen = None, self._seen
        self._backwards += 1
        if seen.updates in WALKED and self._backwards <= BACKWARDS:
            with self._part:
                if any(kind.walks for kind, _ in self._of["backward"]):
                    graph = _walk(roots, has_tensor_hooks=seen.has_tensor_hooks())
        seen.loss = roots if isinstance(roots, torch.Tensor) else None
        self._ask("backward", seen, graph)
        seen.loss = None

    def backward_ended(self) -> None:
        self._ask("backward_ended", self._seen)

    def before_update(self, optimizer: Optimizer) -> None:
        self._ask("before_update", self._seen, optimizer)

    def updated(self, optimizer: Optimizer, step: int, *, is_main: bool, is_left_out: bool) -> None:
        """An update was made, or left out; `step`: steps done with it."""
        seen = self._seen
        if step < self._step:
            self._turn_off()  # rolled back
            return
        if is_left_out or step > self._step + 1 > 0:  # a step whose update a scaler left out
            self.was_left_out()
        self._step = step
        if is_left_out:
            return
        if is_main:
            seen.updates += 1
            self._backwards = 0
            self._forwards.clear()
        self._ask("updated", seen, optimizer, is_main=is_main)
        if seen.updates >= self._last:
            self._sleep()

    def was_left_out(self) -> None:
        """An update was no evidence; of one that its device left out this is known a step later."""
        with self._part:
            for mistake in list(self._kinds):
                mistake.interrupted()
                if mistake.in_a_row:
                    self._drop(mistake)

    def exported(self, module: Module, state: Mapping[str, Any]) -> None:
        """The script has asked for a module's ``state_dict``."""
        self._ask("exported", self._seen, module, state)

    def loaded(self, module: Module, state: Mapping[str, Any], *, is_strict: bool) -> None:
        """The script is about to load weights; with `is_strict` each name has to match."""
        self._ask("loaded", self._seen, module, state, is_strict=is_strict)

    def continue_at(self) -> None:
        """A resume has arrived: what it would need of the first steps is gone."""
        self._turn_off()

    # --- what is found -----------------------------------------------------------------------

    def _ask(self, moment: str, *args: Any, **given: Any) -> None:
        asked = self._of[moment]
        if not asked:
            return
        try:
            for mistake, look in asked:  # a new list is made where one is dropped
                proof = look(*args, **given)
                if proof is not None or mistake.is_over:
                    self._drop(mistake)
                if proof is not None and self._tells:
                    self._tell(mistake.kind, proof)
        except BaseException as error:
            self._part.caught(error)

    def _tell(self, kind: str, proof: Proof) -> None:
        step = max(self._step, self._seen.steps_done(), 0)
        is_question = proof.severity is Severity.LOW
        where = str(proof.where or "")
        fact = f"{where}: {proof.fact}" if where else proof.fact
        message = f"{fact}. Mend: {proof.mend}. On purpose: --set mistakes.on_purpose=[{kind}]"
        alert = Alert(
            detector="mistakes",
            severity=proof.severity,
            category="question" if is_question else "mistake",
            kind=kind,
            cause=Cause.OTHER,
            message=message,
            fact=fact,
            step=step,
            metadata={"where": where, "names": list(proof.names), "mend": proof.mend},
        )
        self._alerts.tell(StepRecord(step=step), (alert,))
        if is_question:
            return
        self._warn(f"mistake: {message}", aloud=True)
        if self._settings.stop:
            self._stop(f"mistakes.stop: {fact}")

    def _sleep(self) -> None:
        self._end([mistake for mistake in self._kinds if mistake.lasts])
        self.follows_loaders = any(kind.follows_loaders for kind in self._kinds)
        self.sleeps = bool(self._of["forward"]) and self._wakings < WAKINGS

    def _turn_off(self) -> None:
        self._end([])
        self.sleeps = self.follows_loaders = False

    def _end(self, left: list[Mistake]) -> None:
        for mistake in self._kinds:
            mistake.forward_ended()
        self.is_on = False
        self._kinds = left
        self._sort()
        self._seen.made_at.clear()
        self._forwards.clear()


def _looks_at(mistake: Mistake, moment: str) -> bool:
    return getattr(type(mistake), moment) is not getattr(Mistake, moment)


@uncollected()
def _walk(roots: Any, *, has_tensor_hooks: bool) -> LossGraph | None:
    given = (roots,) if isinstance(roots, torch.Tensor) else roots
    if not isinstance(given, (tuple, list)):
        return None
    try:
        tensors = [each for each in given if isinstance(each, torch.Tensor)]
        return LossGraph(tensors, runs_users_code=has_tensor_hooks)
    except TooLarge:
        return None
