"""Averages that the script keeps of its weights (EMA, SWA): between what they were and the weights.

Each update of an average lies between the average and its weight, so after any number of them it
lies between what it was and all values that the weight can have had, which its optimizer's bound
gives.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from supervisor.training_state.snapshot import Snapshot
from supervisor.worker.corruption.comparison import WEIGHT, TensorCase, reach
from supervisor.worker.corruption.corrupted_tensor import FEW, GROWN, SMALLEST, CorruptedTensor
from supervisor.worker.corruption.limits import Rounding

ALIKE = 0.9
"""Cosine between an average and its weight: other things that scripts keep for each weight, sums of
gradients or of their squares, have none."""
ROUNDINGS = 8
"""Of one element at one update of an average."""

_TYPES = (torch.float32, torch.bfloat16, torch.float16)
_ROUNDING = {kind: known for kind in _TYPES if (known := Rounding.of(kind)) is not None}

_writes: Callable[[torch.Tensor], int] = operator.attrgetter("_version")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bounded:
    """A weight or a running value of which it is known how far it can have moved.

    Attributes:
        name: in its model.
        then: as it was at the last look.
        reach: computes how far each element has been from that at most, None if that is not known.
        is_sure: the bound counts; else an average may be borne out by it, and nothing is claimed.
    """

    name: str
    then: torch.Tensor
    reach: Callable[[], torch.Tensor | None]
    is_sure: bool

    @classmethod
    def weight(cls, name: str, case: TensorCase, *, is_sure: bool) -> Bounded:
        """One that only its optimizer has written to since the last look."""
        return cls(
            name=name,
            then=case.then[WEIGHT],
            reach=lambda: reach(case.then, case.limits),
            is_sure=is_sure,
        )


@dataclass(slots=True, eq=False)
class _Average:
    """A tensor of the script's that may be an average.

    Attributes:
        name: of the weight that it may be an average of.
        writes: that torch has counted at the last look.
        rate: writes for each step, as seen; 0 if not known.
        is_borne_out: it was an average at the last look, with this rate.
    """

    name: str
    tensor: weakref.ref[torch.Tensor]
    writes: int
    rate: float = 0.0
    is_borne_out: bool = False


class AverageCheck:
    """Finds elements of averages that no average can have.

    What is an average is known by its path, which ends with the name of a weight of the same
    shape, by its likeness to it, and by its behaviour until the last look. As everything
    that a script may write to, an element counts only as one of a few, only if it has grown beyond
    average and weight, and only if there were as many counted writes as always.
    """

    def __init__(self) -> None:
        self._known: dict[str, _Average] = {}

    def checked(self, state: Mapping[str, Any]) -> None:
        """The snapshot of this boundary was taken.

        Args:
            state: what was copied, live.
        """
        names = sorted({name for tensors in state["models"].values() for name in tensors}, key=len)
        known, self._known = self._known, {}
        for path, tensor in state["held"].items():
            if not isinstance(tensor, torch.Tensor) or tensor.numel() < SMALLEST:
                continue
            before = known.get(path)
            if before is not None and before.tensor() is tensor:
                before.writes = _writes(tensor)
                self._known[path] = before
                continue
            ends = [name for name in names if _is_end(path, name)]
            if ends:
                self._known[path] = _Average(ends[-1], weakref.ref(tensor), _writes(tensor))

    def compare(
        self, snapshot: Snapshot, steps: int, weights: Iterable[Bounded]
    ) -> list[CorruptedTensor]:
        """Called at a boundary.

        Args:
            snapshot: of the last look.
            steps: since then, also those whose update was left out: averages go on.
        """
        by_name = {weight.name: weight for weight in weights}
        found: list[CorruptedTensor] = []
        for path, average in self._known.items():
            live, kept = average.tensor(), snapshot.state["held"].get(path)
            weight = by_name.get(average.name)
            if weight is None or live is None or not steps or not _fits(live, kept):
                continue
            rate = (_writes(live) - average.writes) / steps
            if rate != average.rate:
                average.rate, average.is_borne_out = rate, False
            if average.is_borne_out and _is_usual(live, kept, weight.then):
                continue
            moved = weight.reach() if weight.then.shape == live.shape else None
            if moved is None or not _are_alike(kept, weight.then):
                continue
            finding = _beyond(path, live, kept, weight, moved, steps)
            if finding is None:
                average.is_borne_out = True
            elif average.is_borne_out and weight.is_sure and _is_claimed(finding, weight):
                found.append(finding)
            else:
                average.is_borne_out = False
        return found


def _is_end(path: str, name: str) -> bool:
    """Whether the script calls a tensor as the model calls its own: ``ema.head.weight``,
    ``ema['head.weight']``."""
    return path.endswith((f".{name}", f"[{name!r}]"))


def _fits(live: torch.Tensor, kept: Any) -> bool:
    return (
        isinstance(kept, torch.Tensor)
        and live.shape == kept.shape
        and live.dtype is kept.dtype
        and live.dtype in _ROUNDING
        and live.layout is torch.strided
    )


def _is_usual(live: torch.Tensor, kept: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether nothing has grown beyond all that was there, so that nothing can be claimed."""
    return _largest(live) <= GROWN * max(_largest(kept), _largest(weight))


def _are_alike(kept: torch.Tensor, then: torch.Tensor) -> bool:
    one, other = kept.detach().reshape(-1).double(), then.detach().reshape(-1).to(kept).double()
    cosine = one @ other / (one.norm() * other.norm())
    return float(torch._C.TensorBase.item(cosine)) >= ALIKE


def _beyond(
    path: str,
    live: torch.Tensor,
    kept: torch.Tensor,
    weight: Bounded,
    moved: torch.Tensor,
    steps: int,
) -> CorruptedTensor | None:
    """Returns what is not between the earlier average and the weight."""
    rounding = _ROUNDING[live.dtype]
    now, before = live.detach().float(), kept.to(live.device).float()
    middle, moved = weight.then.to(live.device).float(), moved.to(live.device)
    lowest = torch.minimum(before, middle - moved)
    highest = torch.maximum(before, middle + moved)
    share = ROUNDINGS * rounding.unit * steps
    slack = share * torch.maximum(lowest.abs(), highest.abs()) + ROUNDINGS * rounding.tiny
    inside = (now >= lowest - slack) & (now <= highest + slack)
    outside = (~inside).reshape(-1)
    count = int(outside.sum())
    if not count:
        return None
    places = tuple(outside.nonzero().reshape(-1)[:FEW].tolist())
    most = torch.maximum(lowest.abs(), highest.abs()).reshape(-1)
    return CorruptedTensor(
        name=path,
        rule="average",
        live=live,
        kept=kept,
        places=places,
        count=count,
        bound=float(most[places[0]]),
    )


def _is_claimed(finding: CorruptedTensor, weight: Bounded) -> bool:
    """Whether they are few elements, and all have grown beyond average and weight."""
    if not finding.is_listed:
        return False
    values = finding.live.detach().reshape(-1)[list(finding.places)].float().abs()
    most = GROWN * max(_largest(finding.kept), _largest(weight.then), finding.bound)
    return not bool((values <= most).any())


def _largest(values: torch.Tensor) -> float:
    return float(torch._C.TensorBase.item(values.detach().abs().max()))
