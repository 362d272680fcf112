"""One corrupted tensor, as it is told."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from supervisor.training_state.bounds.flipped_bit import flipped_bit


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CorruptedTensor:
    """What was found in one tensor, and what is needed to heal it.

    Attributes:
        name: as it is told: model and parameter, and the optimizer's entry.
        rule: see `Breach`.
        live: the tensor.
        kept: what it was at the last look, on whatever device.
        places: of the elements, flat, the worst first.
        count: how many elements they are; more than `places` if not all are listed.
        bound: see `Breach`.
        worst: value of the worst element, what it was, and the bit whose flip explains it, if one
            does; read before anything is healed.
        siblings: further tensors of the same parameter, with what they were, that are put back at
            the same places: moments belong together.
    """

    name: str
    rule: str
    live: torch.Tensor
    kept: torch.Tensor
    places: tuple[int, ...]
    count: int
    bound: float
    siblings: tuple[tuple[torch.Tensor, torch.Tensor], ...] = ()
    worst: tuple[float, float, int | None] = field(init=False)

    def __post_init__(self) -> None:
        value, before = _at(self.live, self.places[0]), _at(self.kept, self.places[0])
        tolerance = abs(before) / 2
        bit = flipped_bit(value, before, tolerance, self.live.dtype)
        object.__setattr__(self, "worst", (value, before, bit))

    @property
    def is_apart(self) -> bool:
        """Whether no gradient depends on it: nothing else can have suffered."""
        return self.rule in ("average", "statistic")

    @property
    def is_listed(self) -> bool:
        """Whether all elements are known by place."""
        return self.count == len(self.places)

    def index(self) -> tuple[int, ...]:
        """Returns the worst element's indices."""
        rest, found = self.places[0], []
        for size in reversed(self.live.shape):
            found.append(rest % size)
            rest //= size
        return tuple(reversed(found))

    def sentence(self) -> str:
        """Says it in words."""
        where = ", ".join(map(str, self.index()))
        more = f" (and {self.count - 1} more elements)" if self.count > 1 else ""
        value, before, bit = self.worst
        flipped = f" (bit {bit} flipped)" if bit is not None else ""
        return (
            f"{self.name}[{where}] is {value:.6g}{flipped}, was {before:.6g}{more}: "
            f"{_RULES[self.rule].format(bound=self.bound)}"
        )


_RULES = {
    "moved": "its optimizer can have moved it by {bound:.3g} at most",
    "still": "nothing has written to it",
    "memory": "the gradients since allow {bound:.3g} at most",
    "fell": "it cannot have fallen below {bound:.3g}",
    "negative": "an average of squares is never negative",
    "pair": "its second moment allows {bound:.3g} at most",
    "not finite": "all gradients since were finite",
    "average": "an average of its weight is {bound:.3g} at most",
    "statistic": "the batches since make it {bound:.3g}",
    "counter": "it counts updates, and would be {bound:.0f} at most",
}


def _at(tensor: torch.Tensor, place: int) -> float:
    # Not `.item()`: this read is ours, and is not on the tape.
    return float(torch._C.TensorBase.item(tensor.detach().reshape(-1)[place]))
