"""A loss that counts padding, or nothing."""

from __future__ import annotations

from typing import Any

from supervisor.worker.mistakes.evidence.loss_graph import LossGraph, ignored_by, saved, signed
from supervisor.worker.mistakes.evidence.mistake import LossMistake, Proof, SeenSoFar
from supervisor.worker.mistakes.evidence.places import loss_line

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
