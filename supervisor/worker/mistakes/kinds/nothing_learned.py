"""A model that has learned nothing from its inputs."""

from __future__ import annotations

import math

import torch
from torch.optim import Optimizer

from supervisor.codes import Severity
from supervisor.worker.mistakes.evidence.loss_graph import (
    LossGraph,
    behind_views,
    ignored_by,
    logits_of,
    saved,
)
from supervisor.worker.mistakes.evidence.mistake import Mistake, Proof, SeenSoFar
from supervisor.worker.mistakes.evidence.places import loss_line

FIRST, EVERY, LAST = 25, 5, 100
LARGE = 65_536
"""Targets of one step that are counted."""
FEW = 20
"""Targets a class, below which their frequencies are not known."""
WORSE, TARGETS = 1.5, 64
"""Than the entropy and the start, each loss of so many targets: more than batches differ."""


class NothingLearned(Mistake):
    """A rate that is far too high, dead units, inputs that tell nothing of the targets.

    Proof: the loss is a plain mean ``cross_entropy``. In 15 steps from the 25th to the 100th its
    mean is not below the entropy of the targets in them, corrected for their number (Miller 1955):
    whoever knows the frequencies alone does as well. It is told where one more fact is there: for
    three updates the gradient of each weight matrix is zero to the bit (dead units), or each of the
    15 losses, of 64 targets or more, is one and a half times the first loss of all, and the
    entropy: it became worse. It is asked, in the report alone, where the loss has also stopped
    falling.

    Spares: hard tasks in their first steps and long warm-ups (asked, or silent while the loss
    falls), targets without frequencies (regression, more classes than targets), weights of classes,
    label smoothing, a loss of several parts, tasks that change on the way.

    Sources: karpathy.github.io/2019/04/25/recipe, huggingface/accelerate#2665.
    """

    kind = "nothing_learned"
    in_a_row = True
    walks = False

    def __init__(self) -> None:
        self._first: torch.Tensor | None = None
        self._seen: list[tuple[torch.Tensor, torch.Tensor, int]] = []
        self._losses: list[float] = []
        self._entropy = 0.0
        self._where = ""
        self._dead = self._at = 0

    def backward(self, seen: SeenSoFar, graph: LossGraph | None) -> Proof | None:
        updates, loss = seen.updates, seen.loss
        is_sampled = updates >= FIRST and updates % EVERY == 0 and updates != self._at
        if self._losses and not self._where:
            self._where = loss_line(seen.registry)
        if self._first is not None and not is_sampled:
            return None
        found = None if loss is None else _targets(loss)
        if found is None or loss is None:
            self.is_over = True
        elif self._first is None:
            self._first = loss.detach().clone()
        else:
            self._at = updates
            self._seen.append((loss.detach().clone(), *found))
        return None

    def before_update(self, seen: SeenSoFar, optimizer: Optimizer) -> None:
        if seen.updates == LAST - 4:
            self._judge()
        if self._losses:
            held = [each for group in optimizer.param_groups for each in group["params"]]
            grads = [each.grad for each in held if each.grad is not None]
            matrices = [grad for grad in grads if grad.dim() > 1]
            is_dead = bool(matrices) and not any(bool(grad.any()) for grad in matrices)
            self._dead += is_dead and any(bool(grad.any()) for grad in grads)

    def _judge(self) -> None:
        self.is_over = True
        if not self._seen:
            return
        counted = torch.cat([targets[targets != ignored] for _, targets, ignored in self._seen])
        counts = torch.unique(counted, return_counts=True)[1].double()
        total = float(counts.sum())
        if len(counts) < 2 or total < FEW * len(counts):
            return
        shares = counts / total
        self._entropy = float(-(shares * shares.log()).sum()) + (len(counts) - 1) / (2 * total)
        losses = torch.stack([loss for loss, *_ in self._seen]).tolist()
        if all(map(math.isfinite, losses)) and sum(losses) / len(losses) >= self._entropy:
            self._losses, self.is_over = losses, False

    def updated(self, seen: SeenSoFar, optimizer: Optimizer, *, is_main: bool) -> Proof | None:
        if not is_main or seen.updates < LAST or self._first is None:
            return None
        self.is_over = True
        losses, half = self._losses, len(self._losses) // 2
        mean, start = sum(losses) / len(losses), float(self._first)
        is_known = all(len(targets) >= TARGETS for _, targets, _ in self._seen)
        severity, beside = Severity.MEDIUM, ""
        if self._dead >= 3:
            beside = ", and the gradient of each weight matrix is zero: its units are dead"
        elif is_known and min(losses) >= WORSE * max(start, self._entropy):
            beside = f", and worse than the {start:.3g} of the first step"
        elif sum(losses[-half:]) >= sum(losses[:half]):
            severity = Severity.LOW
        else:
            return None
        rate = max((float(group.get("lr") or 0.0) for group in optimizer.param_groups), default=0.0)
        return Proof(
            fact=f"nothing is learned from the inputs: after {seen.updates} updates the loss is "
            f"{mean:.3g} and the entropy of the targets {self._entropy:.3g}, so that their "
            f"frequencies alone do as well{beside}; the learning rate is {rate:.2g}",
            where=self._where,
            mend="a smaller learning rate, a warm-up, a look at the batches",
            severity=severity,
        )


def _targets(loss: torch.Tensor) -> tuple[torch.Tensor, int] | None:
    """Those of a loss that is a mean cross-entropy itself, and which one is ignored."""
    node = behind_views(loss.grad_fn)
    if loss.dim() or node is None or not node.name().startswith("NllLoss"):
        return None
    target = saved(node, "target")
    if target is None or logits_of(node) is None:
        return None
    if node._saved_reduction != 1 or node._saved_weight is not None:
        return None
    return target.flatten()[:LARGE].clone(), ignored_by(node)
