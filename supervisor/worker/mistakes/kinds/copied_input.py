"""A language model whose targets are its own input."""

from __future__ import annotations

from supervisor.worker.mistakes.evidence.loss_graph import LossGraph
from supervisor.worker.mistakes.evidence.mistake import Proof, SeenSoFar
from supervisor.worker.mistakes.evidence.next_token import TokenLoss, TokenMistake, is_causal
from supervisor.worker.mistakes.evidence.places import loss_line


class CopiedInput(TokenMistake):
    """Labels that nobody has shifted: it learns to copy the token that it sees.

    Proof: each target is counted and equals the token that the model embeds at the same place, in
    three steps; and by the loss's own graph the prediction at a place depends on what is embedded
    there, and on nothing embedded later in its row: it is causal, and sees the answer.

    Spares: models that shift labels themselves (the embedded token is another), masked language
    models (the mask is embedded, or nothing is causal), autoencoders (later tokens count).

    Sources: huggingface/transformers#27517, huggingface/transformers#35066.
    """

    kind = "targets_are_the_input"
    shift = 0

    def proof(self, seen: SeenSoFar, graph: LossGraph, found: TokenLoss) -> Proof | None:
        if not is_causal(graph, found):
            return None
        return Proof(
            fact=(
                "the targets are the model's own input, not the next token of it; each prediction "
                "sees its answer, and the model learns to copy"
            ),
            where=loss_line(seen.registry),
            mend="shift them: cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())",
        )
