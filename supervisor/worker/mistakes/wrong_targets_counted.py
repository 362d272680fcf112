"""A loss that counts padding, or nothing."""

from __future__ import annotations

from typing import Any

from supervisor.worker.mistakes.evidence.loss_graph import LossGraph, saved
from supervisor.worker.mistakes.evidence.places import loss_line, script_place
from supervisor.worker.mistakes.mistake import Mistake, Proof, SeenSoFar

TIMES = 3


class WrongTargetsCounted(Mistake):
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
        self._padded = self._ignored = 0

    def backward(self, seen: SeenSoFar, graph: LossGraph | None) -> Proof | None:
        if graph is None:
            return None
        losses = list(graph.named("NllLoss"))
        self.is_over = not losses and seen.updates >= TIMES
        if len(losses) != 1:
            return None
        node = losses[0]
        target, ignored = saved(node, "target"), _signed(node._saved_ignore_index)
        if target is None or not node._saved_reduction:
            self.is_over = True
        elif bool((target == ignored).all()):
            self._ignored += 1
            if self._ignored == TIMES:
                return self._proof(
                    seen,
                    f"the loss counts nothing: all targets are {ignored}, which it ignores",
                    "keep the targets that are to be learned",
                )
        else:
            return self._look_for_padding(seen, graph, node, target, ignored)
        return None

    def _look_for_padding(
        self, seen: SeenSoFar, graph: LossGraph, node: Any, target: Any, ignored: int
    ) -> Proof | None:
        flat, is_padding = target.flatten(), None
        for table in graph.named("EmbeddingBackward"):
            pad, embedded = _signed(table._saved_padding_idx), saved(table, "indices")
            if pad < 0 or pad == ignored or embedded is None or embedded.numel() != flat.numel():
                continue
            inputs = embedded.flatten() == pad
            if (inputs == (flat == pad)).all():
                is_padding = inputs
        weight = saved(node, "weight")
        if is_padding is None or (weight is not None and not bool(weight[flat[is_padding]].all())):
            self.is_over = True
            return None
        self._padded += bool(is_padding.any())
        if self._padded < TIMES:
            return None
        share = float(is_padding.float().mean())
        return self._proof(
            seen,
            f"padding is counted in the loss: {share:.0%} of its targets are the embedding's own "
            "padding_idx, exactly where the input is padding",
            "cross_entropy(..., ignore_index=padding_idx)",
        )

    def _proof(self, seen: SeenSoFar, fact: str, mend: str) -> Proof:
        where = loss_line(script_place(), seen.registry.models.values())
        return Proof(fact=fact, where=where, mend=mend)


def _signed(index: int) -> int:
    """Torch hands out negative numbers of its graph as large ones."""
    return index - (1 << 64) if index >= 1 << 63 else index
