"""A language model that sees the token that it is to predict."""

from __future__ import annotations

from supervisor.codes import Severity
from supervisor.worker.mistakes.evidence.loss_graph import LossGraph, saved
from supervisor.worker.mistakes.evidence.mistake import Proof, SeenSoFar
from supervisor.worker.mistakes.evidence.next_token import (
    TokenLoss,
    TokenMistake,
    seen_from_the_middle,
)
from supervisor.worker.mistakes.evidence.places import loss_line


class SeesFuture(TokenMistake):
    """Attention without a causal mask: the next token is among what the model is given.

    Proof: in three steps the targets of the only ``cross_entropy`` are the next embedded tokens,
    wherever they are counted; an attention over the places looks ahead; and by the loss's own graph
    a prediction depends on the very token that it is to predict. It is asked, in the report alone:
    an autoencoder that leaves its first token out looks the same.

    Spares: causal masks, also those that a script adds itself (nothing above the diagonal), models
    that embed the tokens twice (an encoder's), masked language models (the mask is embedded).

    Sources: pytorch/tutorials#2478, huggingface/transformers#48745,
    alex-matton/causal-transformer-decoder#1.
    """

    kind = "model_sees_the_future"
    shift = 1

    def proof(self, seen: SeenSoFar, graph: LossGraph, found: TokenLoss) -> Proof | None:
        if not _looks_ahead(graph, found):
            return None
        places, next_one = seen_from_the_middle(graph, found), found.width // 2 + 1
        if places is None or not bool(places[next_one] > 0):
            return None
        return Proof(
            fact=(
                "the model sees the future: each prediction depends on the token that it is to "
                "predict, through attention without a causal mask"
            ),
            where=loss_line(seen.registry),
            mend="a causal mask: is_causal=True, or Transformer.generate_square_subsequent_mask",
            severity=Severity.LOW,
        )


def _looks_ahead(graph: LossGraph, loss: TokenLoss) -> bool:
    places = loss.embedded.shape[1]
    for node in graph.named("ScaledDotProduct"):
        has_mask = any(saved(node, name) is not None for name in ("attn_mask", "attn_bias"))
        if getattr(node, "_saved_is_causal", True) is False and not has_mask:
            return True
    for node in graph.named("SoftmaxBackward"):
        result = saved(node, "result")
        if result is not None and result.dim() > 2 and result.shape[-2:] == (places, places):
            return bool(result.reshape(-1, places, places)[0].triu(1).any())
    return False
