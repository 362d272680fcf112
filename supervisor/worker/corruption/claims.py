"""When a value beyond a bound is called corrupted.

Torch counts writes, but not those through ``p.data`` or a NumPy view, and scripts do write so:
they clamp, prune, normalise, average and load weights. What they write lies within what the
weights were, or is many elements; so only a few elements that grew out of their tensor count.
"""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.training_state.bounds.batch import TensorCase
from supervisor.training_state.bounds.comparison import Breach

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
