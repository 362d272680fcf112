"""How large attention logits are, and how many keys a query still chooses between."""

from __future__ import annotations

import math
from typing import Any

import torch

from supervisor.worker.probes.readings import Readings
from supervisor.worker.probes.strided import rows_of

MAX_QUERIES = 64
MIN_KEYS = 8
"""With fewer keys a low entropy says nothing."""

MAX_ELEMENTS = 1 << 17


class AttentionLook:
    """Computes logits of the first sample's queries once more, at most `MAX_QUERIES` of them.

    Growing logits precede the divergence of transformers by hundreds of steps (arXiv 2309.14322),
    and with them the entropy falls (arXiv 2303.06296).
    """

    def saw_scores(self, scores: Any, readings: Readings, where: str) -> None:
        """Called with what goes into a softmax over the last dimension."""
        if type(scores) is not torch.Tensor or scores.dim() not in (3, 4):
            return
        if scores.dim() == 3 and scores.shape[-1] != scores.shape[-2]:
            return  # logits over a vocabulary
        if scores.shape[-1] < MIN_KEYS:
            return
        logits = rows_of(scores, MAX_ELEMENTS).float()
        _note(logits[..., -MAX_QUERIES:, :], readings, where)

    def saw_product(
        self, query: Any, key: Any, readings: Readings, where: str, given: dict[str, Any]
    ) -> None:
        """Called with the arguments of ``scaled_dot_product_attention``: (..., length, width)."""
        if type(query) is not torch.Tensor or type(key) is not torch.Tensor or query.dim() < 3:
            return
        keys = key.shape[-2]
        if keys < MIN_KEYS or query.shape[-1] != key.shape[-1]:
            return
        width, length = query.shape[-1], query.shape[-2]
        queries = query.detach().reshape(-1, length, width)[:64, -MAX_QUERIES:].float()
        groups = query[..., 0, 0].numel() // max(1, key[..., 0, 0].numel())
        some = key.detach().reshape(-1, keys, width)
        if groups > 1:  # grouped queries share keys
            some = some.repeat_interleave(groups, 0)
        some = some[:64].float()
        scale = given.get("scale") or 1.0 / math.sqrt(width)
        with torch.autocast(query.device.type, enabled=False):
            logits = (queries @ some.transpose(1, 2)) * scale
        if given.get("is_causal"):
            last = torch.arange(length, device=logits.device)[-MAX_QUERIES:, None]
            hidden = torch.arange(keys, device=logits.device)[None] > last
            logits = logits.masked_fill(hidden, -math.inf)
        mask = given.get("attn_mask")
        if isinstance(mask, torch.Tensor) and mask.dtype == torch.bool and mask.dim() == 2:
            logits = logits.masked_fill(~mask[-MAX_QUERIES:], -math.inf)
        _note(logits, readings, where)


def _note(logits: torch.Tensor, readings: Readings, where: str) -> None:
    seen = logits > -1e4  # masks of -inf, and of the lowest number of a format
    top = torch.where(seen, logits.abs(), logits.new_zeros(())).amax()
    readings.largest("attention_logit_max", where, top)
    odds = torch.log_softmax(logits, -1)
    entropy = -(odds.exp() * odds.clamp_min(-80.0)).sum(-1)
    most = seen.sum(-1).clamp_min(1).log()
    counted = most > math.log(MIN_KEYS) - 1e-6
    share = torch.where(counted, entropy / most.clamp_min(1e-6), entropy.new_zeros(()))
    mean = share.sum() / counted.sum()  # NaN without a query of that many keys: left out
    readings.smallest("attention_entropy", where, mean)
