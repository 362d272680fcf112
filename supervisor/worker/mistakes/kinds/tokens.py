"""Language models whose targets are not the next token, or that see it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import GradientEdge

from supervisor.codes import Severity
from supervisor.worker.mistakes.evidence.loss_graph import LossGraph, ignored_by, logits_of, saved
from supervisor.worker.mistakes.evidence.mistake import ForwardSeen, LossMistake, Proof, SeenSoFar
from supervisor.worker.mistakes.evidence.places import ScriptLine, loss_line, script_place
from supervisor.worker.mistakes.evidence.tensors_within import tensors

SHIFTS = (0, 1, 2)


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """A ``cross_entropy`` whose targets are the embedded tokens, moved.

    Attributes:
        shift: the target at a place is the token embedded so many places later, wherever it is
            counted; no other of `SHIFTS` fits. With 0 each target is counted.
        embedded: the tokens, (rows, places).
        width: predictions of a row.
        logits, table: nodes of the log_softmax and the embedding.
    """

    shift: int
    embedded: torch.Tensor
    width: int
    logits: Any
    table: Any


class TokenMistake(LossMistake):
    """One of these losses, with the kind's own shift. Silent where there is a second loss, which
    may predict other tokens, or tokens are embedded twice (a context, an encoder's input)."""

    shift: int

    def find(self, graph: LossGraph) -> TokenLoss | None:
        if graph.token_loss is False:
            losses = list(graph.named("NllLoss"))
            graph.token_loss = _found(graph, losses[0]) if len(losses) == 1 else None
        found: TokenLoss | None = graph.token_loss
        return found if found is not None and found.shift == self.shift else None


def _found(graph: LossGraph, node: Any) -> TokenLoss | None:
    target, logits, words = saved(node, "target"), logits_of(node), []
    if target is None or logits is None or target.numel() < 2:
        return None
    for table in graph.named("Embedding"):
        embedded = saved(table, "indices")
        if embedded is None or not _are_positions(embedded):
            words.append((table, embedded))
    table, embedded = words[0] if len(words) == 1 else (None, None)
    if embedded is None or embedded.dim() != 2 or embedded.shape[1] < 4:
        return None
    rows, places = embedded.shape
    if target.numel() not in (rows * places, rows * (places - 1)):
        return None
    wanted = target.reshape(rows, -1)
    shift = _only_shift(embedded, wanted, wanted != ignored_by(node))
    return None if shift is None else TokenLoss(shift, embedded, wanted.shape[1], logits, table)


def _are_positions(indices: torch.Tensor) -> bool:
    return bool((indices[..., 1:] == indices[..., :-1] + 1).all())


def _only_shift(embedded: torch.Tensor, wanted: torch.Tensor, counted: torch.Tensor) -> int | None:
    fits = []
    for shift in SHIFTS:
        token = embedded[:, shift : shift + wanted.shape[1]]
        these = counted[:, : token.shape[1]]
        is_equal = (wanted[:, : token.shape[1]] == token) | ~these
        fits.append(is_equal.all() & (these.any() if shift else counted.all()))
    found = [shift for shift, fit in zip(SHIFTS, torch.stack(fits).tolist(), strict=True) if fit]
    return found[0] if len(found) == 1 else None


def seen_from_the_middle(graph: LossGraph, loss: TokenLoss) -> torch.Tensor | None:
    """How much each place counts for one prediction, in the middle of the first row, which is at
    ``width // 2``. It takes one backward; none is made where it would call the script's code."""
    result = None if graph.has_users_code() else saved(loss.logits, "result")
    if result is None or result.dim() != 2 or len(result) != len(loss.embedded) * loss.width:
        return None
    wanted = torch.zeros_like(result)
    wanted[loss.width // 2, 0] = 1.0
    (moved,) = torch.autograd.grad(
        (GradientEdge(loss.logits, 0),),
        (GradientEdge(loss.table, 0),),
        (wanted,),
        retain_graph=True,
        allow_unused=True,
    )
    return moved[0].abs().amax(-1) if moved is not None and moved.dim() == 3 else None


def is_causal(graph: LossGraph, loss: TokenLoss) -> bool:
    """Whether that prediction sees its own place, and none later."""
    seen, place = seen_from_the_middle(graph, loss), loss.width // 2
    return seen is not None and bool(seen[place] > 0) and not bool(seen[place + 1 :].any())


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
