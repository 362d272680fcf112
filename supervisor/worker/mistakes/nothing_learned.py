"""A model that has learned nothing from its inputs."""

from __future__ import annotations

import math

import torch
from torch.optim import Optimizer

from supervisor.codes import Severity
from supervisor.worker.mistakes.evidence.loss_graph import LossGraph, behind_views, saved
from supervisor.worker.mistakes.evidence.places import ScriptLine, loss_line, script_place
from supervisor.worker.mistakes.mistake import Mistake, Proof, SeenSoFar

FIRST, EVERY, LAST = 25, 5, 100
LARGE = 65_536
"""Targets of one step that are counted."""
FEW = 20
"""Targets a class, below which their frequencies are not known."""
WORSE = 1.1


class NothingLearned(Mistake):
    """A rate that is far too high, dead units, inputs that tell nothing of the targets.

    Proof: the loss is a plain mean ``cross_entropy``. In 15 steps from the 25th to the 100th its
    mean is not below the entropy of the targets in them, corrected for their number (Miller 1955):
    whoever knows the frequencies alone does as well. It is told where one more fact is there: for
    three updates the gradient of each weight matrix is zero to the bit (dead units), or none of
    the 15 is below the first three steps' and their mean is a tenth above the entropy. It is asked,
    in the report alone, where the loss has also stopped falling.

    Spares: hard tasks in their first steps (asked, or silent while the loss falls), targets without
    frequencies (regression, more classes than targets), weights of classes, label smoothing, a loss
    of several parts, tasks that change on the way.

    Sources: karpathy.github.io/2019/04/25/recipe, huggingface/accelerate#2665.
    """

    kind = "nothing_learned"

    def __init__(self) -> None:
        self._first: list[torch.Tensor] = []
        self._seen: list[tuple[torch.Tensor, torch.Tensor, int]] = []
        self._place: ScriptLine | None = None
        self._losses: tuple[float, ...] = ()
        self._entropy = 0.0
        self._dead = self._at = 0

    def backward(self, seen: SeenSoFar, graph: LossGraph | None) -> Proof | None:
        updates = seen.updates
        is_sampled = updates >= FIRST and updates % EVERY == 0 and updates != self._at
        if updates >= 3 and not is_sampled:
            return None
        found = None if seen.loss is None else _targets(seen.loss)
        if found is None or seen.loss is None:
            self.is_over = True
        elif updates < 3:
            self._first.append(seen.loss.detach().clone())
        else:
            self._at = updates
            self._seen.append((seen.loss.detach().clone(), *found))
            self._place = script_place() if updates + EVERY >= LAST else None
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
        classes = [targets[targets != ignored] for _, targets, ignored in self._seen]
        if not classes:
            return
        counts = torch.unique(torch.cat(classes), return_counts=True)[1].double()
        total = float(counts.sum())
        if len(counts) < 2 or total < FEW * len(counts):
            return
        shares = counts / total
        self._entropy = float(-(shares * shares.log()).sum()) + (len(counts) - 1) / (2 * total)
        losses = tuple(float(loss) for loss, *_ in self._seen)
        if all(map(math.isfinite, losses)) and sum(losses) / len(losses) >= self._entropy:
            self._losses, self.is_over = losses, False

    def updated(self, seen: SeenSoFar, optimizer: Optimizer, *, is_main: bool) -> Proof | None:
        if not is_main or seen.updates < LAST:
            return None
        self.is_over = True
        losses, half = self._losses, len(self._losses) // 2
        mean, start = sum(losses) / len(losses), [float(each) for each in self._first]
        severity, beside = Severity.MEDIUM, ""
        if self._dead >= 3:
            beside = ", and the gradient of each weight matrix is zero: its units are dead"
        elif min(losses) >= max(start) and mean > WORSE * self._entropy:
            beside = f", and no better than the {sum(start) / len(start):.3g} of the first steps"
        elif sum(losses[-half:]) >= sum(losses[:half]):
            severity = Severity.LOW
        else:
            return None
        rate = max((float(group.get("lr") or 0.0) for group in optimizer.param_groups), default=0.0)
        return Proof(
            fact=(
                f"nothing is learned from the inputs: after {seen.updates} updates the loss is "
                f"{mean:.3g} and the entropy of the targets {self._entropy:.3g}, so that their "
                f"frequencies alone do as well{beside}; the learning rate is {rate:.2g}"
            ),
            where=loss_line(self._place),
            mend="a smaller learning rate, a warm-up, a look at the batches",
            severity=severity,
        )

    def interrupted(self) -> None:
        self.is_over = True


def _targets(loss: torch.Tensor) -> tuple[torch.Tensor, int] | None:
    """Those of a loss that is a mean cross-entropy itself, and which one is ignored."""
    node = behind_views(loss.grad_fn)
    if loss.dim() or node is None or not node.name().startswith("NllLoss"):
        return None
    inner, target = behind_views(node.next_functions[0][0]), saved(node, "target")
    if inner is None or not inner.name().startswith("LogSoftmax") or target is None:
        return None
    if node._saved_reduction != 1 or node._saved_weight is not None:
        return None
    return target.flatten()[:LARGE].clone(), node._saved_ignore_index
