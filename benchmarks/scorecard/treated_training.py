"""A small training with a fault, treated in this process as a worker does it.

The real pipeline, actions, snapshots and state, without a second process: half a second a training,
so that a rule of the ladder can be switched off and the outcome compared.
"""

from __future__ import annotations

import math
import tempfile
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from benchmarks.scorecard.rules import switched_off
from benchmarks.unlucky_tasks import Task, build
from benchmarks.unlucky_training import HIGH_LR, Misfortune
from supervisor.actions.base import ActionContext, carry_out
from supervisor.actions.catalogue import build_actions
from supervisor.actions.controls import Controls, hide_gradients
from supervisor.config import load_policy
from supervisor.pipeline import Pipeline
from supervisor.records import ActionResult, Decision, StepRecord
from supervisor.settings import RunSettings, SnapshotSettings
from supervisor.training_state.registry import Registry
from supervisor.training_state.snapshot import SnapshotRing
from supervisor.training_state.state import TrainingState

STEPS = 300
TASKS = ("mlp", "cnn", "vae")
FAULTS = (
    "nan_gradient", "loss_spike", "weight", "optimizer", "lr_bug", "nan_batch", "wild_batch",
    "poisoned_sample", "high_lr", "long_high_lr", "harder_loss", "creeping_lr",
)  # fmt: skip
"""Of `unlucky_training`; an objective that becomes four times as large from one step on; and a rate
that from one step on grows by a fifth at each, to 60 times itself, and stays there."""
RELAPSES = ("weight", "wild_batch", "lr_bug")
AGAIN = " again"
"""Behind the name of a fault that strikes three times, `AGAIN_AFTER` steps apart."""
AGAIN_AFTER = 12
HALF = ("none", "nan_gradient", "weight", "weight again", "lr_bug")
"""Of a network in FP16 throughout, which cannot train there."""
CASES = (
    *((task, fault) for task in TASKS for fault in FAULTS),
    *((task, fault + AGAIN) for task in TASKS for fault in RELAPSES),
    *(("half", fault) for fault in HALF),
)
"""(task, fault)."""
CREEP = 1.2
CREPT = 60.0
SNAPSHOT_EVERY = 10
TOLERANCE = 1.02
"""As in benchmarks/survival.py: at most so many times the loss of the training without a fault."""


@dataclass(frozen=True)
class Treated:
    """How one training ended.

    Attributes:
        final_loss: on held-out data.
        treatments: decisions that change the training's course.
        mattered: of the rules that were watched, those without which something else would have been
            decided.
    """

    final_loss: float
    treatments: int
    mattered: frozenset[str]


class TreatedTraining:
    """One training: the loop of `unlucky_training`, with its steps judged and treated.

    Args:
        without: a rule that is switched off; empty for none.
        watched: rules of which is found whether they matter: a pipeline without each looks on.
    """

    def __init__(
        self,
        task: str,
        fault: str,
        at: int,
        seed: int,
        *,
        without: str = "",
        watched: Collection[str] = (),
    ) -> None:
        torch.manual_seed(seed)
        self._name, self._fault, self._at = task, fault, at
        self._order = torch.Generator().manual_seed(100 + seed)
        self._task: Task = build(task, HIGH_LR[task] if fault == "high_lr" else 1.0)
        registry = Registry()
        registry.add_model(self._task.model)
        registry.add_optimizer(self._task.optimizer)
        self._registry, self._state = registry, TrainingState(registry)
        self._controls, self._actions = Controls(), build_actions()
        self._snapshots = SnapshotRing(SnapshotSettings())
        self._policy = load_policy()
        self._without = without
        self._pipeline = Pipeline(RunSettings(), self._policy)
        self._others = {rule: Pipeline(RunSettings(), self._policy) for rule in watched}
        self._mattered: set[str] = set()
        self._norms: deque[float] = deque(maxlen=1000)
        self._stopped = False
        self._treatments = 0

    def run(self) -> Treated:
        with tempfile.TemporaryDirectory() as folder:
            times = 3 if self._fault.endswith(AGAIN) else 1
            kind = self._fault.removesuffix(AGAIN)
            misfortunes = [
                Misfortune(kind, self._at + AGAIN_AFTER * n, Path(folder, f"struck_{n}"))
                for n in range(times)
            ]
            for step in range(STEPS):
                due = (one for one in misfortunes if step <= one.at)
                self._step(step, next(due, misfortunes[-1]))
                if self._stopped:
                    break
        self._task.model.eval()
        with torch.no_grad():
            final = float(self._task.loss(self._task.valid))
        final = final if math.isfinite(final) else math.inf
        return Treated(final, self._treatments, frozenset(self._mattered))

    def _step(self, step: int, misfortune: Misfortune) -> None:
        task, optimizer = self._task, self._task.optimizer
        if step % SNAPSHOT_EVERY == 0:
            self._snapshots.take(step, self._state.capture(for_rollback=True), {})
        base = [group["lr"] for group in optimizer.param_groups]
        factor = _schedule(step, self._fault) * misfortune.lr_factor(step, self._name)
        if self._fault == "creeping_lr" and step > self._at:
            factor *= min(CREEP ** (step - self._at), CREPT)
        loss = misfortune.on_loss(
            step, task.loss(misfortune.on_batch(step, task.draw(self._order)))
        )
        if self._fault == "harder_loss" and step >= self._at:
            loss = 4.0 * loss
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        misfortune.on_gradients(step, task)
        norm = float(nn.utils.get_total_norm([p.grad for p in task.model.parameters()]))
        self._norms.append(norm)
        decision = self._judge(step, float(loss.detach()), norm, factor * base[0])
        late = [n for n in decision.actions if self._actions[n].moment == "boundary"]
        at_once = [self._carry_out(n, decision) for n in decision.actions if n not in late]
        skips = any(result.skips_update for result in at_once)
        limit = self._controls.max_norm(None)
        if limit is not None:
            nn.utils.clip_grad_norm_(task.model.parameters(), limit)
        for group, rate in zip(optimizer.param_groups, base, strict=True):
            group["lr"] = rate * factor * self._controls.rate_factor(factor * base[0])
        give_back = hide_gradients(optimizer) if skips else None
        optimizer.step()
        if give_back is not None:
            give_back()
        for group, rate in zip(optimizer.param_groups, base, strict=True):
            group["lr"] = rate
        self._controls.advance(norm)
        misfortune.on_updated(step, task)
        for name in late:
            self._carry_out(name, decision)

    def _judge(self, step: int, loss: float, norm: float, rate: float) -> Decision:
        record = StepRecord(
            step=step, loss=loss, grad_norm=norm, lr=rate, step_time_s=0.005, batch_size=32,
            loss_seen=True, grad_norm_seen=True,
        )  # fmt: skip
        with switched_off(self._without):
            decision = self._pipeline.update(record).decision
        for rule, other in list(self._others.items()):
            with switched_off(rule):
                found = other.update(record).decision
            if repr(found) != repr(decision):
                self._mattered.add(rule)
                del self._others[rule]
        if decision is None:
            return Decision(step=step, actions=())
        for name in decision.undo:
            carry_out(self._actions[name], self._context(decision), undo=True)
        self._treatments += bool({*decision.actions} - {"checkpoint"})
        if "stop" in decision.actions:
            self._stopped = True
        return decision

    def _carry_out(self, name: str, decision: Decision) -> ActionResult:
        if name == "restart":  # the newest checkpoint from before the trouble, in a new process
            name = "rollback"
        action, context = self._actions[name], self._context(decision)
        result = carry_out(action, context)
        pipelines = {self._without: self._pipeline, **self._others}
        for without, pipeline in pipelines.items():
            with switched_off(without):
                pipeline.settle(result)
                if result.applied and result.to_step >= 0:
                    pipeline.rolled_back(result.to_step)
        return result

    def _context(self, decision: Decision) -> ActionContext:
        return ActionContext(
            step=decision.step,
            policy=self._policy,
            decision=decision,
            controls=self._controls,
            registry=self._registry,
            state=self._state,
            snapshots=self._snapshots,
            recent_grad_norms=list(self._norms),
            save_checkpoint=lambda reason: True,
            uses_autocast=False,
        )


def _schedule(step: int, fault: str) -> float:
    """Factor of the rate: a warm-up, but for a rate that is too high from the start; a cosine."""
    warm_up = 0 if fault == "high_lr" else STEPS // 10
    if step < warm_up:
        return (step + 1) / warm_up
    return 0.5 * (1 + math.cos(math.pi * (step - warm_up) / (STEPS - warm_up)))
