"""A loss for logits that is given probabilities."""

from __future__ import annotations

from torch import nn

from supervisor.worker.mistakes.evidence.loss_graph import LossGraph, behind_views, logits_of
from supervisor.worker.mistakes.evidence.mistake import LossMistake, Proof, SeenSoFar
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
