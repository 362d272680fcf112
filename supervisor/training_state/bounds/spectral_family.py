"""Muon, whose updates are nearly orthogonal matrices: none is larger than its spectral norm."""

from __future__ import annotations

import math
from collections.abc import Sequence

from supervisor.training_state.bounds.averages import LOST
from supervisor.training_state.bounds.limits import Affine, Limits
from supervisor.training_state.bounds.norm_family import NORM_LOST
from supervisor.training_state.bounds.optimizer_family import (
    SLACK,
    OptimizerFamily,
    decoupled,
    drift,
)
from supervisor.training_state.bounds.update_log import Update, UpdateLog

_MATRIX_UNIT = 1 + 2.0**-6
"""Torch multiplies these matrices in BF16: four of its units for each iteration."""


class Muon(OptimizerFamily):
    """The momentum goes through Newton and Schulz's iteration, a polynomial of its singular values
    (Jordan et al., 2024: https://kellerjordan.github.io/posts/muon/)."""

    keys = (
        "lr", "momentum", "nesterov", "weight_decay", "ns_coefficients", "ns_steps", "adjust_lr_fn"
    )  # fmt: skip
    needs_norms = True
    needs_shape = True
    counts = ""

    def limits(self, log: UpdateLog) -> Limits | None:
        steps: list[tuple[Affine, float]] = []
        unit, lost = log.rounding.unit, Affine(LOST * log.rounding.tiny)
        memory = Affine(of_memory=1.0) if log.has_memory else Affine()
        for update in log.updates:
            decay, momentum = decoupled(update, is_on=True), update.number("momentum")
            if decay is None or not 0.0 <= momentum <= 1.0:
                return None
            moved = update.number("lr") * _stretch(update, log.shape) * _largest_value(update)
            if not math.isfinite(moved):
                return None
            steps.append((Affine(moved), decay))
            newest = Affine(update.norm + NORM_LOST)
            memory = memory.times(momentum).plus(newest, 1 - momentum)
            memory = memory.times(1 + 4 * unit).plus(lost)
        # Without Nesterov, torch normalises the momentum itself where it is in BF16.
        has_limit = all(update.is_on("nesterov") for update in log.updates)
        has_limit = has_limit and math.isfinite(memory.constant)
        return Limits(
            weight=drift(steps, log.rounding),
            memory="momentum_buffer",
            memory_limit=memory.times(1 + SLACK) if has_limit else None,
        )


def _stretch(update: Update, shape: Sequence[int]) -> float:
    """Torch's factor of the learning rate for a matrix of this shape."""
    rows, columns = shape
    match update.settings["adjust_lr_fn"]:
        case None | "original":
            return math.sqrt(max(1.0, rows / columns))
        case "match_rms_adamw":
            return 0.2 * math.sqrt(max(rows, columns))
        case _:
            return math.inf


def _largest_value(update: Update) -> float:
    """The largest singular value that the iteration can give a matrix whose norm is 1."""
    a, b, c = (float(value) for value in update.settings["ns_coefficients"])
    largest = _MATRIX_UNIT
    for _ in range(int(update.number("ns_steps"))):
        largest = _MATRIX_UNIT * _largest_of(a, b, c, largest)
    return largest


def _largest_of(a: float, b: float, c: float, end: float) -> float:
    """The largest absolute value of ``a x + b x^3 + c x^5`` for x from 0 to `end`."""
    places = [end]
    square = 9 * b * b - 20 * a * c  # of the roots of the derivative, in x^2
    if square >= 0.0 and c:
        roots = [(-3 * b + sign * math.sqrt(square)) / (10 * c) for sign in (1, -1)]
        places += [math.sqrt(root) for root in roots if 0.0 < root < end * end]
    elif not c and b and 0.0 < -a / (3 * b) < end * end:
        places.append(math.sqrt(-a / (3 * b)))
    return max(abs(a * x + b * x**3 + c * x**5) for x in places)
