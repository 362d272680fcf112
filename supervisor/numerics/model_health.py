"""Which layers hold NaN, infinities or huge values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from supervisor.numerics.figures import figure
from supervisor.numerics.model_call import bare_model, is_float
from supervisor.records import Plain, plain
from supervisor.table import table
from supervisor.training_state.tensors import local

HUGE = 1e4
"""A sixth of FP16's largest value (65504), near which one more sum or product overflows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthFinding(Plain):
    """One unhealthy tensor.

    Attributes:
        layer: dotted path of the module; ``(model)`` for the model itself.
        name: full name of the tensor.
        kind: ``parameter``, ``buffer`` or ``gradient``.
        problem: ``nan``, ``inf`` or ``huge``; the worst of what was found.
        nan_count, inf_count, huge_count: elements of each.
        size: number of elements.
        max_abs: largest finite magnitude.
    """

    layer: str
    name: str
    kind: str
    problem: str
    nan_count: int
    inf_count: int
    huge_count: int
    size: int
    max_abs: float


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ModelHealth:
    """All findings in the order of the model; `tensors` is how many were looked at."""

    findings: tuple[HealthFinding, ...]
    tensors: int

    @property
    def healthy(self) -> bool:
        return not self.findings

    def to_dict(self) -> dict[str, Any]:
        return {"healthy": self.healthy, **plain(self)}

    def __repr__(self) -> str:
        if self.healthy:
            return f"Healthy: no NaN, infinite or huge value in {self.tensors} tensors."
        rows = [
            (f.name, f.kind, f.problem, f.nan_count, f.inf_count, f.huge_count, figure(f.max_abs))
            for f in self.findings
        ]
        return table(("tensor", "kind", "problem", "NaN", "inf", "huge", "largest"), rows)


def model_health(model: nn.Module, *, huge: float = HUGE) -> ModelHealth:
    """Looks at every parameter, buffer and gradient; changes nothing.

    Buffers of only 0 and -infinity are masks, and healthy.

    Args:
        huge: magnitude above which a finite value is called huge.

    Raises:
        UsageError: not a module.
    """
    findings, count = [], 0
    for layer, name, kind, tensor in _tensors(bare_model(model)):
        count += 1
        finding = _examine(layer, name, kind, local(tensor), huge)
        if finding is not None:
            findings.append(finding)
    return ModelHealth(findings=tuple(findings), tensors=count)


def _tensors(model: nn.Module) -> Iterator[tuple[str, str, str, torch.Tensor]]:
    seen: set[int] = set()
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) in seen:
                continue
            seen.add(id(parameter))
            yield path or "(model)", prefix + name, "parameter", parameter
            if parameter.grad is not None:
                yield path or "(model)", prefix + name, "gradient", parameter.grad
        for name, buffer in module.named_buffers(recurse=False):
            if id(buffer) not in seen:
                seen.add(id(buffer))
                yield path or "(model)", prefix + name, "buffer", buffer


def _examine(
    layer: str, name: str, kind: str, tensor: torch.Tensor, huge: float
) -> HealthFinding | None:
    if tensor.is_sparse:
        tensor = tensor.coalesce().values()
    if not is_float(tensor) or not tensor.numel():
        return None
    values = tensor.abs() if tensor.is_complex() else tensor.float()
    nans, infinities = int(values.isnan().sum()), int(values.isinf().sum())
    if kind == "buffer" and bool(((values == 0) | torch.isneginf(values)).all()):
        return None
    sound = values[torch.isfinite(values)].abs()
    large = int((sound > huge).sum())
    if not (nans or infinities or large):
        return None
    return HealthFinding(
        layer=layer,
        name=name,
        kind=kind,
        problem="nan" if nans else "inf" if infinities else "huge",
        nan_count=nans,
        inf_count=infinities,
        huge_count=large,
        size=values.numel(),
        max_abs=float(sound.max()) if sound.numel() else 0.0,
    )
