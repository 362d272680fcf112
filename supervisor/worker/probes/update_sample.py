"""What an update is about to do, tensor by tensor."""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from supervisor.worker.core.step_probe import read_number
from supervisor.worker.probes.readings import strided

MAX_TENSORS = 128
"""Evenly over the model, first and last among them: stale moments show in the first layers first
(arXiv 2304.13013)."""

MAX_ELEMENTS = 8192
"""Of a tensor, evenly over it: the mean of so many ratios is within 2 % of the mean of all."""


class UpdateSample:
    """Gradient and weights of the main optimizer's matrices at one step.

    Vectors (biases, norms) are left out: a mean over few elements is noise.

    Attributes:
        largest: figure → (parameter, value), worst first, of the newest look; held weakly, since
            the script may drop the model.
    """

    def __init__(self) -> None:
        self.largest: dict[str, list[tuple[weakref.ref[torch.Tensor], float]]] = {}
        self._parameters: Sequence[torch.Tensor] = ()
        self._indices: list[int] = []
        self._before: list[torch.Tensor] = []
        self._after: list[torch.Tensor] = []

    def before_update(
        self,
        optimizer: Optimizer,
        parameters: Sequence[torch.Tensor],
        norm: float | None = None,
    ) -> dict[str, float]:
        """Called between backward and update.

        Args:
            norm: of the whole gradient before the script clipped it; None if that is not known.

        Returns:
            ``dead_layers_share`` and ``layer_gradient_max``.
        """
        self.largest = {}
        self._parameters = parameters
        matrices = [
            index
            for index, parameter in enumerate(parameters)
            if parameter.dim() > 1 and _is_plain(parameter.grad)
        ]
        if not matrices:
            return {}
        apart = -(-len(matrices) // MAX_TENSORS)
        chosen = sorted({*matrices[::apart], matrices[-1]})
        is_scaled = getattr(optimizer, "grad_scale", None) is not None  # fused
        found = self._layers(chosen, parameters, None if is_scaled else norm)
        self._indices = chosen
        self._before = [strided(parameters[i], MAX_ELEMENTS).clone() for i in chosen]
        self._after = [parameters[i] for i in chosen]
        return found

    def after_update(self) -> dict[str, float]:
        """Called right after the update; returns ``update_ratio``.

        The largest of ||change|| / ||weight|| over the matrices; those that are nearly zero, as
        low-rank adapters are at the start, do not count.
        """
        before, after, self._before, self._after = self._before, self._after, [], []
        if not before:
            self._parameters = ()
            return {}
        now = [strided(tensor, MAX_ELEMENTS) for tensor in after]
        change = _numbers(torch._foreach_norm(torch._foreach_sub(now, before)))
        size = _numbers(torch._foreach_norm(before))
        ratios = {
            index: moved / norm
            for index, moved, norm, tensor in zip(self._indices, change, size, before, strict=True)
            if norm > 1e-3 * math.sqrt(tensor.numel())
        }
        found = self._worst("update_ratio", ratios)
        self._parameters = ()
        return found

    def _layers(
        self, chosen: Sequence[int], parameters: Sequence[torch.Tensor], norm: float | None
    ) -> dict[str, float]:
        """Each layer's gradient; clipping makes all of them smaller by the same factor."""
        gradients = {i: p.grad for i, p in enumerate(parameters) if _is_plain(p.grad)}
        sizes = _numbers(torch._foreach_norm([g for g in gradients.values() if g is not None]))
        norms = dict(zip(gradients, sizes, strict=True))
        alive = sum(norms[index] != 0.0 for index in chosen)
        if not alive:
            return {}
        found = {"dead_layers_share": 1.0 - alive / len(chosen)}
        whole = math.hypot(*sizes)
        if norm is not None and math.isfinite(norm) and math.isfinite(whole):
            unclipped = max(1.0, norm / whole)
            layers = {index: unclipped * norms[index] for index in chosen}
            found |= self._worst("layer_gradient_max", layers)
        return found

    def _worst(self, name: str, values: Mapping[int, float]) -> dict[str, float]:
        finite = {index: value for index, value in values.items() if math.isfinite(value)}
        if not finite:
            return {}
        self._note(name, finite)
        return {name: max(finite.values())}

    def _note(self, name: str, values: Mapping[int, float]) -> None:
        worst = sorted(values.items(), key=lambda item: -item[1])[:5]
        self.largest[name] = [(weakref.ref(self._parameters[i]), value) for i, value in worst]


def _is_plain(tensor: Any) -> bool:
    """Whether arithmetic on it is local and cheap: real, not sparse, not spread over processes."""
    is_strided = type(tensor) is torch.Tensor and tensor.layout is torch.strided
    return is_strided and not tensor.is_complex()


def _numbers(scalars: Sequence[torch.Tensor]) -> list[float]:
    """Reads many scalars at once; on several devices one by one."""
    if len({scalar.device for scalar in scalars}) > 1:
        return [float(read_number(scalar)) for scalar in scalars]
    values: list[float] = torch.Tensor.tolist(torch.stack([s.float() for s in scalars]))
    return values
