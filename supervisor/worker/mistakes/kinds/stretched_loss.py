"""A loss that broadcasts its input and its target against each other."""

from __future__ import annotations

from typing import Any

import torch

from supervisor.worker.mistakes.evidence.loss_graph import LossGraph, saved
from supervisor.worker.mistakes.evidence.mistake import LossMistake, Proof, SeenSoFar
from supervisor.worker.mistakes.evidence.places import loss_line

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
