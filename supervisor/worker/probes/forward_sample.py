"""What the layers put out in one forward: range, dead units, and whether samples differ.

How large attention logits are, and how many keys a query still chooses between.
"""

from __future__ import annotations

import math
import operator
import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from supervisor.by_identity import ByIdentity, IdentitySet
from supervisor.worker.core.step_probe import derived_numbers
from supervisor.worker.probes.exposed import PLAIN, LatentHeads, exposed_values
from supervisor.worker.probes.readings import Readings, rows_of

MAX_QUERIES = 64
MIN_KEYS = 8
"""With fewer keys a low entropy says nothing."""

MAX_ELEMENTS = 1 << 17


class AttentionSample:
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


MAX_MODULES = 64
"""Evenly over the model, the last among them; one costs 20 to 60 us on a CPU."""

"""Of an output: a GPU is done with so many before the next kernel is launched, so the time that the
launches take is the price."""

MIN_ROWS = 8
"""Samples without which it cannot be said that they are all alike."""

MAX_ROWS, MAX_COLUMNS = 64, 256

SKIPPED = (nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.Dropout, nn.Identity, nn.Flatten)
RECTIFIERS = (nn.ReLU, nn.ReLU6)


class ForwardSample:
    """Takes in the outputs of modules at one step; each module's first one counts.

    It launches a few small reductions for each, reads none of them before `take`, and draws no
    random numbers.
    """

    def __init__(self) -> None:
        self.attention = AttentionSample()
        self.readings = Readings()
        self._wanted: ByIdentity[nn.Module, str] = ByIdentity()
        self._known: list[weakref.ref[nn.Module]] = []
        self._heads = LatentHeads()
        self._left: IdentitySet[nn.Module] = IdentitySet()
        self._exposed: dict[str, Any] = {}
        self._saw_root = False

    def start(self, models: Mapping[str, nn.Module]) -> None:
        """Called before the step's first forward, with the models that the training has used."""
        roots = list(models.values())
        known = [there() for there in self._known]
        if len(known) != len(roots) or any(map(operator.is_not, known, roots)):
            self._known = [weakref.ref(root) for root in roots]
            self._choose(models)
        self._left = IdentitySet(self._wanted)
        self._exposed = {}
        self._saw_root = False
        self.readings.clear()

    def _choose(self, models: Mapping[str, nn.Module]) -> None:
        self._heads = LatentHeads()
        named: list[tuple[nn.Module, str]] = []
        for model, root in models.items():
            self._heads.find(root)
            for path, module in root.named_modules():
                if path and not isinstance(module, SKIPPED):
                    named.append((module, f"{model}.{path}" if len(models) > 1 else path))
        apart = max(1, -(-len(named) // MAX_MODULES))
        self._wanted = ByIdentity()
        for module, path in [*named[::apart], *named[-1:]]:
            self._wanted[module] = path

    def saw(self, module: nn.Module, output: Any, *, is_root: bool) -> None:
        """Called behind each module's forward, in the training's own thread, without gradients."""
        if module in self._left:
            self._left.discard(module)
            tensor = output[0] if isinstance(output, (tuple, list)) and output else output
            if _is_usable(tensor):
                self._look(module, self.name_of(module), tensor)
        if module in self._heads:
            self._heads.saw(module, output)
        if is_root and not self._saw_root:
            self._saw_root = True
            self._exposed = exposed_values(module, output)

    def name_of(self, module: nn.Module) -> str:
        return str(self._wanted.get(module, type(module).__name__))

    def take(self) -> dict[str, float]:
        """Returns the figures of the step; called between backward and update."""
        found = self.readings.take()
        exposed = self._heads.take() | self._exposed
        self._exposed = {}
        plain = {name: exposed[name].float().mean() for name in PLAIN if name in exposed}
        return found | derived_numbers(exposed) | {n: float(v) for n, v in plain.items()}

    def _look(self, module: nn.Module, name: str, tensor: torch.Tensor) -> None:
        part = rows_of(tensor, MAX_ELEMENTS)
        low, high = torch.aminmax(part)
        largest = torch.maximum(-low, high).float()
        self.readings.largest("activation_max", name, largest)
        if tensor.dtype == torch.float16:
            limit = torch.finfo(torch.float16).max
            self.readings.largest("activation_range", name, largest / limit)
        if tensor.dim() < 2:
            return
        features = _features(part)
        if len(features) < MIN_ROWS:
            return
        if isinstance(module, RECTIFIERS):
            dead = (features.amax(0) <= 0).float().mean()
            self.readings.largest("dead_units_share", name, dead)
        elif features.shape[1] > 1 and isinstance(module, nn.Linear):
            self.readings.smallest("representation_spread", name, _spread(features))


def _is_usable(value: Any) -> bool:
    return (
        type(value) is torch.Tensor
        and value.layout is torch.strided
        and value.is_floating_point()
        and value.numel() > 0
    )


def _features(part: torch.Tensor) -> torch.Tensor:
    """Samples (or tokens, or places of an image) x units."""
    if part.dim() == 4:  # samples x channels x height x width
        part = part.movedim(1, -1)
    rows = part.reshape(-1, part.shape[-1])
    rows = rows[:: max(1, -(-len(rows) // MAX_ROWS))] if len(rows) > MAX_ROWS else rows
    return rows[:, :MAX_COLUMNS]


def _spread(features: torch.Tensor) -> torch.Tensor:
    """Share of the outputs' power that differs between samples: 0 when all are the same."""
    values = features.float()
    power = values.square().mean()
    return values.var(0, unbiased=False).mean() / power.clamp_min(math.ulp(0.0) + 1e-30)
