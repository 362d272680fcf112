"""What no update can do, whatever its optimizer is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from supervisor.training_state.bounds.batch import TensorCase
from supervisor.training_state.bounds.comparison import Breach
from supervisor.worker.corruption.corrupted_tensor import CorruptedTensor


def wrong_count(
    name: str, now: Mapping[str, Any], then: Mapping[str, Any], counts: str, wanted: int
) -> CorruptedTensor | None:
    """Returns a counter of updates that is not what it must be."""
    live, kept = now.get(counts), then.get(counts)
    if not isinstance(live, torch.Tensor) or not isinstance(kept, torch.Tensor):
        return None
    return CorruptedTensor(
        name=f"{name} {counts}",
        rule="counter",
        live=live,
        kept=torch.full_like(kept, wanted),
        places=(0,),
        count=1,
        bound=float(wanted),
    )


def not_finite(case: TensorCase) -> list[Breach]:
    """Elements that became NaN or infinite although all gradients were finite."""
    found: list[Breach] = []
    for entry in case.now:
        bad = ~torch.isfinite(case.now[entry]).reshape(-1)
        count = int(bad.sum())
        if count and bool(torch.isfinite(case.then[entry]).all()):
            places = tuple(bad.nonzero().reshape(-1)[:16].tolist())
            found.append(
                Breach(entry=entry, rule="not finite", places=places, count=count, bound=math.nan)
            )
    return found
