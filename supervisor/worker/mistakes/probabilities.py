"""A loss for logits that is given probabilities."""

from __future__ import annotations

from torch import nn

from supervisor.worker.mistakes.evidence.loss_graph import LossGraph, behind_views
from supervisor.worker.mistakes.evidence.places import loss_line, script_place
from supervisor.worker.mistakes.mistake import Mistake, Proof, SeenSoFar

TIMES = 3


class Probabilities(Mistake):
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

    def __init__(self) -> None:
        self._times = 0

    def backward(self, seen: SeenSoFar, graph: LossGraph | None) -> Proof | None:
        if graph is None:
            return None
        found = _double(graph)
        if not found:
            self.is_over = seen.updates >= TIMES and not self._times
            return None
        self._times += 1
        if self._times < TIMES:
            return None
        first, loss = found
        kind = nn.Softmax if first == "softmax" else nn.Sigmoid
        names = [
            name
            for model in seen.registry.models.values()
            for name, part in nn.Module.named_modules(model)
            if isinstance(part, kind)
        ]
        return Proof(
            fact=(
                f"{loss} gets probabilities: its input comes out of a {first}, which it applies "
                "itself"
            ),
            where=loss_line(script_place(), seen.registry.models.values()),
            names=tuple(names),
            mend=f"return the logits: leave the {first} out in training, apply it for predictions",
        )


def _double(graph: LossGraph) -> tuple[str, str] | None:
    for node in graph.named("NllLoss"):
        inner = behind_views(node.next_functions[0][0])
        if inner is None or not inner.name().startswith("LogSoftmax"):
            continue
        below = behind_views(inner.next_functions[0][0])
        if below is not None and below.name().startswith("SoftmaxBackward"):
            return "softmax", "cross_entropy"
    for node in graph.named("BinaryCrossEntropyWithLogits"):
        below = behind_views(node.next_functions[0][0])
        if below is not None and below.name().startswith("SigmoidBackward"):
            return "sigmoid", "binary_cross_entropy_with_logits"
    return None
