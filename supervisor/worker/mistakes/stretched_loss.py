"""A loss that broadcasts its input and its target against each other."""

from __future__ import annotations

from typing import Any

import torch

from supervisor.worker.mistakes.evidence.loss_graph import LossGraph, saved
from supervisor.worker.mistakes.evidence.places import loss_line, script_place
from supervisor.worker.mistakes.mistake import Mistake, Proof, SeenSoFar


class StretchedLoss(Mistake):
    """(N, 1) against (N,): each prediction is compared with every target; it learns the mean.

    Proof: a reducing ``mse_loss``, ``smooth_l1_loss`` or ``huber_loss`` has stretched both: input
    and target have differing numbers of dimensions, and the shape compared is neither's.

    Spares: several heads against one target ((N, 5) with (N, 1)), pairwise losses of as many
    dimensions ((B, 1, N) with (B, N, 1)), targets whose own shape cannot be known (views).

    Sources: pytorch/pytorch#16045, deepset-ai/FARM#229,
    sunwuzhou03/reinforcement-learning-lab#1.
    """

    kind = "stretched_loss"

    def __init__(self) -> None:
        self._times = 0

    def backward(self, seen: SeenSoFar, graph: LossGraph | None) -> Proof | None:
        if graph is None:
            return None
        shapes = next(filter(None, map(_shapes, graph.named("MseLoss", "SmoothL1", "Huber"))), None)
        if shapes is None:
            self.is_over = seen.updates >= 3 and not self._times
            return None
        self._times += 1
        if self._times < 2:
            return None
        given, target, full = shapes
        return Proof(
            fact=(
                f"the loss broadcasts {given} against {target} to {full}: each prediction is "
                "compared with every target, and the best one is their mean"
            ),
            where=loss_line(script_place()),
            mend="one shape for both: prediction.squeeze(-1), or target.unsqueeze(-1)",
        )


def _shapes(node: Any) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]] | None:
    stretched = node.next_functions[0][0]
    if node._saved_reduction == 0 or stretched is None or stretched.name() != "ExpandBackward0":
        return None
    target = saved(node, "target")
    if target is None:
        return None
    full, given = tuple(target.shape), tuple(stretched._saved_self_sym_sizes)
    base = target._base
    if base is None or 0 not in target.stride():
        return None
    own = tuple(base.shape)
    try:
        if torch.broadcast_shapes(own, given) != target.shape:
            return None
    except RuntimeError:
        return None
    if len(own) == len(given) or full in (own, given) or full.count(1) == len(full):
        return None
    return given, own, full
