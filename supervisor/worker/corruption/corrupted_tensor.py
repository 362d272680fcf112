"""One corrupted tensor, as it is told.

Whether one flipped bit explains a value.

When a value beyond a bound is called corrupted.

Torch counts writes, but not those through ``p.data`` or a NumPy view, and scripts do write so:
they clamp, prune, normalise, average and load weights. What they write lies within what the
weights were, or is many elements; so only a few elements that grew out of their tensor count.

Puts a few elements back.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from supervisor.training_state.tensors import outside_autograd
from supervisor.worker.corruption.comparison import Breach, TensorCase

_FORMS = {
    torch.float64: ("<d", "<Q", 64),
    torch.float32: ("<f", "<I", 32),
    torch.float16: ("<e", "<H", 16),
}


def flipped_bit(value: float, before: float, tolerance: float, dtype: torch.dtype) -> int | None:
    """Returns the highest bit (0 is the lowest of the mantissa) whose flip turns `value` into one
    within `tolerance` of `before`; None if there is none."""
    size = 16 if dtype is torch.bfloat16 else _FORMS[dtype][2] if dtype in _FORMS else 0
    for bit in reversed(range(size)):
        if abs(with_flipped_bit(value, bit, dtype) - before) <= tolerance:
            return bit
    return None


def with_flipped_bit(value: float, bit: int, dtype: torch.dtype) -> float:
    """Returns `value`, as `dtype` holds it, with one bit flipped."""
    shift = 16 if dtype is torch.bfloat16 else 0
    floating, integer, _ = _FORMS[torch.float32 if shift else dtype]
    (bits,) = struct.unpack(integer, struct.pack(floating, value))
    (flipped,) = struct.unpack(floating, struct.pack(integer, bits ^ (1 << (bit + shift))))
    return float(flipped)


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
    # Not `.item()`: this read is ours, and is not on the replay log.
    return float(torch._C.TensorBase.item(tensor.detach().reshape(-1)[place]))


FEW = 4
"""Elements: one flipped bit is one, a word of memory two in FP32 and four in BF16."""
SMALLEST = 16
"""Elements of a weight: a script may well set a temperature, or the weight of a loss, by hand."""
GROWN = 2.0
"""Times the largest element that the tensor had."""


def claimed(case: TensorCase, found: Sequence[Breach]) -> list[Breach]:
    """Returns what of all that was found in one tensor is corruption, and not what a script may
    have done unseen."""
    moved_too_far = any(breach.rule == "moved" for breach in found)
    return [breach for breach in found if _is_claimed(case, breach, moved_too_far)]


def _is_claimed(case: TensorCase, breach: Breach, moved_too_far: bool) -> bool:
    live, kept = case.now[breach.entry], case.then[breach.entry]
    is_few = breach.count <= FEW and live.numel() >= SMALLEST
    if breach.rule == "moved":
        least = live.reshape(-1)[list(breach.places)].abs().min()
        return is_few and float(least) > GROWN * float(kept.abs().max()) + breach.bound
    if breach.rule == "fell":
        # A script that resets its moments resets both: its weights then stay within their bound.
        return moved_too_far
    return is_few or breach.rule in ("negative", "pair")


def heal(findings: Sequence[CorruptedTensor]) -> None:
    """Gives corrupted elements the values of the last look. Moments of one parameter belong
    together, so all of them go back at such a place.

    Torch's counters of writes stay as they are: a graph of the script's keeps working.
    """
    with outside_autograd():
        for finding in findings:
            for live, kept in ((finding.live, finding.kept), *finding.siblings):
                places = torch.tensor(finding.places, device=live.device)
                values = kept.reshape(-1)[places]
                target = live.data
                if target.is_contiguous():
                    target.view(-1)[places] = values
                else:
                    whole = target.reshape(-1)
                    whole[places] = values
                    target.copy_(whole.view(target.shape))
