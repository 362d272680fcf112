"""Losses that cannot teach what they are to."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from supervisor.codes import Severity
from supervisor.worker.mistakes.evidence.loss_graph import (
    LossGraph,
    behind_views,
    ignored_by,
    logits_of,
    saved,
    signed,
)
from supervisor.worker.mistakes.evidence.mistake import LossMistake, Mistake, Proof, SeenSoFar
from supervisor.worker.mistakes.evidence.own_draw import held_by
from supervisor.worker.mistakes.evidence.places import loss_line


class Probabilities(LossMistake):
    """Softmax or sigmoid twice: gradients become small, and the loss cannot reach zero.

    Proof: in the loss's graph the input of ``cross_entropy`` (log_softmax below nll_loss, over the
    same dimension), or of ``binary_cross_entropy_with_logits``, comes out of a softmax or sigmoid,
    with nothing but views between them, in three steps.

    Spares: ``nll_loss`` of log_softmax, ``cross_entropy`` of log_softmax (the same numbers), BCE
    of sigmoid, gates and attention, probabilities that are scaled or moved first (a temperature).

    Sources: Lightning-Universe/lightning-bolts#654, bowang-lab/Transformer-GCN-QA#32,
    jindongwang/Deep-learning-activity-recognition#10.
    """

    kind = "probabilities_for_logits"

    def find(self, graph: LossGraph) -> tuple[str, str] | None:
        for loss, above, first in (
            ("cross_entropy", map(logits_of, graph.named("NllLoss")), "softmax"),
            (
                "binary_cross_entropy_with_logits",
                graph.named("BinaryCrossEntropyWithLogits"),
                "sigmoid",
            ),
        ):
            for node in above:
                below = None if node is None else behind_views(node.next_functions[0][0])
                if below is not None and below.name().startswith(f"{first.title()}Backward"):
                    return first, loss
        return None

    def proof(self, seen: SeenSoFar, graph: LossGraph, found: tuple[str, str]) -> Proof:
        first, loss = found
        kind = nn.Softmax if first == "softmax" else nn.Sigmoid
        return Proof(
            fact=f"{loss} gets probabilities: its input comes out of a {first}, which it applies "
            "itself",
            where=loss_line(seen.registry),
            names=[
                name
                for model in seen.registry.models.values()
                for name, part in nn.Module.named_modules(model)
                if isinstance(part, kind)
            ],
            mend=f"return the logits: leave the {first} out in training, apply it for predictions",
        )


Shapes = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


class StretchedLoss(LossMistake):
    """(N, 1) against (N,): each prediction is compared with every target; it learns the mean.

    Proof: a reducing ``mse_loss``, ``smooth_l1_loss`` or ``huber_loss`` has stretched both, in two
    steps: input and target have differing numbers of dimensions, and the shape compared is
    neither's.

    Spares: several heads against one target ((N, 5) with (N, 1)), pairwise losses of as many
    dimensions ((B, 1, N) with (B, N, 1)), targets whose own shape cannot be known (views).

    Sources: pytorch/pytorch#16045, deepset-ai/FARM#229,
    sunwuzhou03/reinforcement-learning-lab#1.
    """

    kind = "stretched_loss"
    times = 2

    def find(self, graph: LossGraph) -> Shapes | None:
        return next(filter(None, map(_shapes, graph.named("MseLoss", "SmoothL1", "Huber"))), None)

    def proof(self, seen: SeenSoFar, graph: LossGraph, found: Shapes) -> Proof:
        given, target, full = found
        return Proof(
            fact=f"the loss broadcasts {given} against {target} to {full}: each prediction is "
            "compared with every target, and the best one is their mean",
            where=loss_line(seen.registry),
            mend="one shape for both: prediction.squeeze(-1), or target.unsqueeze(-1)",
        )


def _shapes(node: Any) -> Shapes | None:
    stretched, target = node.next_functions[0][0], saved(node, "target")
    if node._saved_reduction == 0 or stretched is None or stretched.name() != "ExpandBackward0":
        return None
    if target is None or target._base is None or 0 not in target.stride():
        return None
    full, given = tuple(target.shape), tuple(stretched._saved_self_sym_sizes)
    own = tuple(target._base.shape)
    try:
        if torch.broadcast_shapes(own, given) != target.shape:
            return None
    except RuntimeError:
        return None
    if len(own) == len(given) or full in (own, given) or full.count(1) == len(full):
        return None
    return given, own, full


NONE_COUNTED, NO_PADDING = -1.0, 0.0


class WrongTargetsCounted(LossMistake):
    """No ``ignore_index``: the model is paid for predicting padding. Or all targets are ignored.

    Proof: the model's embedding has a ``padding_idx``; wherever it embeds that index the target of
    ``cross_entropy`` is the same index, and nowhere else, and it is counted, with a weight: in
    three steps that have padding, and in each that was looked at. Or: in three steps each target
    of the only ``cross_entropy`` is the ignored one.

    Spares: a class 0 that is real (it is also a target of tokens), a first padding that stands for
    the end (its input is a token), ``ignore_index``, a weight of zero, losses that are masked
    later (``reduction="none"``), single batches without a target.

    Sources: discuss.pytorch.org/t/ignore-padding-area-in-loss-computation/95804,
    pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html.
    """

    kind = "wrong_targets_counted"

    def __init__(self) -> None:
        self._found: set[bool] = set()

    def find(self, graph: LossGraph) -> float | None:
        losses = list(graph.named("NllLoss"))
        share = _share_of_padding(graph, losses[0]) if len(losses) == 1 else NO_PADDING
        if share is None:
            self.is_over = True
        if not share:
            return None
        self._found.add(share == NONE_COUNTED)
        self.is_over = self.is_over or len(self._found) > 1
        return None if self.is_over else share

    def proof(self, seen: SeenSoFar, graph: LossGraph, found: float) -> Proof:
        if found == NONE_COUNTED:
            fact = "the loss counts nothing: it ignores each target"
            mend = "keep the targets that are to be learned"
        else:
            fact = (
                f"padding is counted in the loss: {found:.0%} of its targets are the embedding's "
                "own padding_idx, exactly where the input is padding"
            )
            mend = "cross_entropy(..., ignore_index=padding_idx)"
        return Proof(fact=fact, where=loss_line(seen.registry), mend=mend)


def _share_of_padding(graph: LossGraph, node: Any) -> float | None:
    """Of the targets, where it is counted; None where a step proves that nothing is wrong."""
    target, ignored = saved(node, "target"), ignored_by(node)
    if target is None or not node._saved_reduction:
        return None
    tables = [
        (signed(table._saved_padding_idx), saved(table, "indices"))
        for table in graph.named("EmbeddingBackward")
    ]
    flat, found = target.flatten(), None
    if bool((flat == ignored).all()):
        return NONE_COUNTED
    for pad, embedded in tables:
        if 0 <= pad != ignored and embedded is not None and embedded.numel() == flat.numel():
            padding = embedded.flatten() == pad
            found = padding if bool((padding == (flat == pad)).all()) else found
    if found is None:
        return None
    weight = saved(node, "weight")
    if weight is not None and not bool(weight[flat[found]].all()):
        return None
    return float(found.float().mean())


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
            held = held_by(optimizer)
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
