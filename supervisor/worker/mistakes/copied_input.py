"""A language model whose targets are its own input."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.graph import GradientEdge

from supervisor.worker.mistakes.evidence.loss_graph import LossGraph, behind_views, saved
from supervisor.worker.mistakes.evidence.places import loss_line, script_place
from supervisor.worker.mistakes.mistake import Mistake, Proof, SeenSoFar

TIMES = 3


class CopiedInput(Mistake):
    """Labels that nobody has shifted: it learns to copy the token that it sees.

    Proof: wherever a target is counted it equals the token that the model embeds at the same
    place, in three steps; and by the loss's own graph the prediction at a place depends on what is
    embedded there, and on nothing embedded later in its row: it is causal, and sees the answer.
    That takes one backward from one prediction; none is made where it would call the script's code.

    Spares: models that shift labels themselves (the embedded token is another), masked language
    models (the mask is embedded, or nothing is causal), autoencoders (later tokens count).

    Sources: huggingface/transformers#27517, huggingface/transformers#35066.
    """

    kind = "targets_are_the_input"

    def __init__(self) -> None:
        self._times = 0

    def backward(self, seen: SeenSoFar, graph: LossGraph | None) -> Proof | None:
        if graph is None:
            return None
        for node in graph.named("NllLoss"):
            target = saved(node, "target")
            logits = behind_views(node.next_functions[0][0])
            if target is None or target.numel() < 2 or logits is None:
                continue
            if not logits.name().startswith("LogSoftmax"):
                continue
            for table in graph.named("EmbeddingBackward"):
                embedded = saved(table, "indices")
                if embedded is not None and _is_copy(embedded, target, node._saved_ignore_index):
                    self._times += 1
                    self.is_over = self._times == TIMES
                    if not self.is_over or graph.has_users_code():
                        return None
                    return self._judge(seen, logits, table, embedded.shape)
        self.is_over = seen.updates >= TIMES and not self._times
        return None

    def _judge(self, seen: SeenSoFar, logits: Any, table: Any, shape: torch.Size) -> Proof | None:
        if not _sees_the_answer(logits, table, shape):
            return None
        return Proof(
            fact=(
                "the targets are the model's own input, not the next token of it; each prediction "
                "sees its answer, and the model learns to copy"
            ),
            where=loss_line(script_place(), seen.registry.models.values()),
            mend="shift them: cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())",
        )


def _is_copy(embedded: torch.Tensor, target: torch.Tensor, ignored: int) -> bool:
    if embedded.dim() != 2 or embedded.numel() != target.numel() or embedded.shape[1] < 4:
        return False
    flat, wanted = embedded.flatten(), target.flatten()
    counted = wanted != ignored
    if not counted.all():
        return False
    # One token all along a row would equal its neighbour, too.
    return torch.equal(flat, wanted) and not torch.equal(embedded[:, 1:], embedded[:, :-1])


def _sees_the_answer(logits: Any, table: Any, shape: torch.Size) -> bool:
    """By one backward through the graph from one prediction, in the middle of the first row."""
    rows, length = shape
    result = saved(logits, "result")
    if result is None or result.dim() != 2 or result.shape[0] != rows * length:
        return False
    place = length // 2
    wanted = torch.zeros_like(result)
    wanted[place, 0] = 1.0
    (moved,) = torch.autograd.grad(
        (GradientEdge(logits, 0),),
        (GradientEdge(table, 0),),
        (wanted,),
        retain_graph=True,
        allow_unused=True,
    )
    if moved is None or moved.dim() != 3:
        return False
    first = moved[0].abs().amax(-1)
    return bool(first[place] > 0) and not bool(first[place + 1 :].any())
