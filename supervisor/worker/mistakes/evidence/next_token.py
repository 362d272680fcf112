"""Which of its own tokens a language model is to predict, and which it sees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import GradientEdge

from supervisor.worker.mistakes.evidence.loss_graph import LossGraph, ignored_by, logits_of, saved
from supervisor.worker.mistakes.evidence.mistake import LossMistake

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
