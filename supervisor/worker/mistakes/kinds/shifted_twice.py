"""Labels that the script has shifted for a model that shifts them itself."""

from __future__ import annotations

import torch

from supervisor.worker.mistakes.evidence.loss_graph import LossGraph
from supervisor.worker.mistakes.evidence.mistake import ForwardSeen, Proof, SeenSoFar
from supervisor.worker.mistakes.evidence.next_token import TokenLoss, TokenMistake, is_causal
from supervisor.worker.mistakes.evidence.places import ScriptLine, script_place
from supervisor.worker.mistakes.evidence.tensors_within import tensors


class ShiftedTwice(TokenMistake):
    """``model(tokens[:, :-1], labels=tokens[:, 1:])``: it learns the token after the next.

    Proof: in three steps the model's call got the tokens that it embeds, and labels that are the
    same, moved by one; in its only ``cross_entropy`` they are moved by two, wherever they are
    counted; and by the loss's own graph a prediction sees its own place and none later, so that its
    next token is the one in between.

    Spares: labels that equal the input (the model shifts them), loops that shift and compute the
    loss themselves, heads that predict several tokens (more than one loss), periodic tokens.

    Sources: huggingface/transformers#32944, wdndev/tiny-llm-zh#10, InternLM/InternLM#318.
    """

    kind = "targets_shifted_twice"
    shift = 2

    def __init__(self) -> None:
        self._given: list[torch.Tensor] = []
        self._place: ScriptLine | None = None

    def forward(self, seen: SeenSoFar, call: ForwardSeen) -> Proof | None:
        if call.with_graph:
            self._given = list(tensors([*call.args, *call.kwargs.values()]))
            self._place = script_place() if self._times == self.times - 1 else None
        return None

    def find(self, graph: LossGraph) -> TokenLoss | None:
        found, (given, self._given) = super().find(graph), (self._given, [])
        if found is None:
            return None
        tokens = found.embedded
        given = [each for each in given if each.shape == tokens.shape]
        is_input = any(torch.equal(each, tokens) for each in given)
        is_moved = any(torch.equal(each[:, :-1], tokens[:, 1:]) for each in given)
        return found if is_input and is_moved else None

    def proof(self, seen: SeenSoFar, graph: LossGraph, found: TokenLoss) -> Proof | None:
        if not is_causal(graph, found):
            return None
        return Proof(
            fact=(
                "labels are shifted twice: the model gets labels that are already its next "
                "tokens, and shifts them itself, so that it learns the token after the next"
            ),
            where=self._place,
            mend="give it the tokens themselves: model(tokens, labels=tokens)",
        )
