"""What every action must hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from supervisor.actions.base import Action, ActionContext
from supervisor.actions.controls import Controls, hide_gradients
from supervisor.records import ActionResult, Cause, Decision
from supervisor.settings import PolicySettings, SnapshotSettings
from supervisor.training_state.registry import Registry
from supervisor.training_state.snapshot import SnapshotRing
from supervisor.training_state.state import TrainingState, digest, is_finite

_STEPS = 12


@dataclass
class _Rehearsal:
    """A healthy little training with everything that an action may ask for."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    context: ActionContext
    data: torch.Generator
    skips_update: bool = False

    def step(self) -> None:
        """One update, steered by the controls as the worker does it."""
        controls = self.context.controls
        batch = torch.randn(8, 4, generator=self.data)
        self.optimizer.zero_grad()
        (self.model(batch) - batch).square().mean().backward()
        limit = controls.max_norm(None)
        if limit is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), limit)
        rates = [group["lr"] for group in self.optimizer.param_groups]
        for group in self.optimizer.param_groups:
            group["lr"] *= controls.lr_factor
        give_back = hide_gradients(self.optimizer) if self.skips_update else None
        self.optimizer.step()
        if give_back is not None:
            give_back()
            self.skips_update = False
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        controls.advance()
        self.context.step += 1

    def fingerprint(self) -> str:
        state = self.context.state.capture()
        return digest({part: state[part] for part in ("models", "optimizers")})


def check_action(build: Callable[[], Action]) -> None:
    """Tries an action on a small healthy training.

    Args:
        build: returns a fresh action each time, usually its class.

    Raises:
        AssertionError: the action raises, changes its name, says nothing about what it did,
            leaves weights that are not finite, or (if it has an `undo`) leaves a trace after it:
            applied and taken back, the training must go on to the bit as if nothing had been.
    """
    _check_face(build())
    for empty in (True, False):
        action, rehearsal = build(), _rehearse(empty)
        result = _try(action, rehearsal.context)
        rehearsal.skips_update = result.skips_update
        taken_back = _call(action, "undo", action.undo, rehearsal.context)
        if result.applied and not result.detail:
            raise AssertionError(f"{action.name}: apply: give a detail that says what was done")
        for _ in range(_STEPS):
            rehearsal.step()
        finite, where = is_finite(rehearsal.context.state.capture())
        if not finite:
            raise AssertionError(f"{action.name}: {where} is not finite after a healthy training")
        if type(action).undo is not Action.undo:
            _check_no_trace(action, rehearsal, _rehearse(empty), taken_back)


def _check_face(action: Action) -> None:
    name = getattr(action, "name", "")
    if not name or not name.isidentifier() or name != name.lower():
        raise AssertionError(f"{type(action).__name__}: name {name!r}: use snake case")
    if action.moment not in ("update", "boundary"):
        raise AssertionError(f"{name}: moment {action.moment!r}: use 'update' or 'boundary'")


def _try(action: Action, context: ActionContext) -> ActionResult:
    refusal = _call(action, "precondition", action.precondition, context)
    if refusal is not None:
        if not isinstance(refusal, str) or not refusal:
            raise AssertionError(f"{action.name}: precondition: return None or a reason")
        return ActionResult(name=action.name, applied=False, detail=refusal)
    return _result(action, "apply", _call(action, "apply", action.apply, context))


def _call(
    action: Action, what: str, method: Callable[[ActionContext], object], context: ActionContext
) -> object:
    try:
        return method(context)
    except Exception as error:
        raise AssertionError(
            f"{action.name}: {what} raised {type(error).__name__}: {error}: return a result "
            "with applied=False, or a reason from precondition"
        ) from error


def _result(action: Action, what: str, result: object) -> ActionResult:
    if not isinstance(result, ActionResult) or result.name != action.name:
        raise AssertionError(f"{action.name}: {what}: return an ActionResult of that name")
    return result


def _check_no_trace(
    action: Action, changed: _Rehearsal, twin: _Rehearsal, taken_back: object
) -> None:
    _result(action, "undo", taken_back)
    for _ in range(_STEPS):
        twin.step()
    if not changed.context.controls.is_neutral:
        raise AssertionError(f"{action.name}: undo: the controls are not neutral after it")
    if changed.fingerprint() != twin.fingerprint():
        raise AssertionError(f"{action.name}: undo: weights differ from an undisturbed run's")


def _rehearse(empty: bool) -> _Rehearsal:
    """Builds the training; an `empty` one has no norms, snapshots or services yet."""
    data = torch.Generator().manual_seed(7)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=data) / 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    registry = Registry()
    registry.add_model(model)
    registry.add_optimizer(optimizer)
    context = ActionContext(
        step=0,
        policy=PolicySettings(lr_factor=1.0, clip_factor=1.0, lr_rewarm_steps=_STEPS // 2),
        decision=Decision(step=0, actions=(), cause=Cause.SPIKE, reason="a rehearsal"),
        controls=Controls(),
        registry=registry,
        state=TrainingState(registry),
        snapshots=SnapshotRing(SnapshotSettings()),
    )
    rehearsal = _Rehearsal(model, optimizer, context, data)
    if not empty:
        for step in range(3):
            context.snapshots.take(step, context.state.capture(), {})
            rehearsal.step()
        context.recent_grad_norms = [1.0, 1.1, 0.9, 1.2, 1.0, 0.8]
        context.save_checkpoint = lambda reason: True
        context.skip_batches = lambda count: None
        context.uses_batch_size = True
    return rehearsal
