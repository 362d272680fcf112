"""Which optimizer belongs to which family; those whose updates have a norm."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from supervisor.worker.corruption.adaptive_families import (
    Adagrad,
    Adam,
    ForeignAdam,
    NAdam,
    RAdam,
    RMSprop,
)
from supervisor.worker.corruption.limits import FIRST, LOST, Affine, Limits, Update, UpdateLog
from supervisor.worker.corruption.optimizer_family import (
    MOMENTUM,
    SLACK,
    Explained,
    OptimizerFamily,
    SeenUpdate,
    decoupled,
    drift,
    explained_by_lion,
)


class SGD(OptimizerFamily):
    """With momentum, dampening, Nesterov and L2 decay; no element exceeds the gradient's norm."""

    keys = ("lr", "momentum", "dampening", "nesterov", "weight_decay")
    needs_norms = True
    counts = ""

    def limits(self, log: UpdateLog) -> Limits | None:
        unit, lost = log.rounding.unit, Affine(4 * log.rounding.tiny)
        memory = Affine(of_memory=1.0) if log.has_memory else Affine()
        moved = Affine()
        for index, update in enumerate(log.updates):
            rate, decay = update.number("lr"), update.number("weight_decay")
            if not math.isfinite(update.norm) or rate < 0.0 or decay < 0.0:
                return None
            gradient = Affine(update.norm + NORM_LOST, decay).plus(moved, decay)
            gradient = gradient.times(1 + 4 * unit).plus(lost)
            memory = self._memory(update, memory, gradient, is_first=not (index or log.has_memory))
            memory = memory.times(1 + 4 * unit).plus(lost)
            step = memory
            if not update.number("momentum"):
                step = gradient
            elif update.is_on("nesterov"):
                step = gradient.plus(memory, abs(update.number("momentum")))
            moved = drift([(moved, 0.0), (step.times(rate), 0.0)], log.rounding)
        keeps = all(update.number("momentum") for update in log.updates)
        return Limits(
            weight=moved.times(1 + SLACK),
            memory="momentum_buffer",
            memory_limit=memory.times(1 + SLACK) if keeps else None,
        )

    @staticmethod
    def _memory(update: Update, memory: Affine, gradient: Affine, *, is_first: bool) -> Affine:
        taken = 1.0 if is_first else abs(1 - update.number("dampening"))
        return memory.times(abs(update.number("momentum"))).plus(gradient, taken)


NORM_LOST = 1e-15
"""Squares of smaller gradients underflow in the norm."""


class Lion(OptimizerFamily):
    """Each element moves by the learning rate, and by the decay; the momentum is an average of
    gradients."""

    keys = ("lr", "betas", "weight_decay")
    needs_norms = True
    counts = ""

    def limits(self, log: UpdateLog) -> Limits | None:
        steps: list[tuple[Affine, float]] = []
        unit, lost = log.rounding.unit, Affine(LOST * log.rounding.tiny)
        memory = Affine(of_memory=1.0) if log.has_memory else Affine()
        for update in log.updates:
            decay = decoupled(update, is_on=True)
            if decay is None:
                return None
            steps.append((Affine(update.number("lr")), decay))
            _, beta = update.betas
            newest = Affine(update.norm + NORM_LOST) if 0.0 <= beta <= 1.0 else Affine(math.inf)
            memory = memory.times(beta).plus(newest, 1 - beta).times(1 + FIRST * unit).plus(lost)
        return Limits(
            weight=drift(steps, log.rounding),
            memory=MOMENTUM,
            memory_limit=memory.times(1 + SLACK) if math.isfinite(memory.constant) else None,
        )

    def explains(self, seen: SeenUpdate) -> Explained:
        return explained_by_lion(seen)


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


_TORCH: dict[type[torch.optim.Optimizer], OptimizerFamily] = {
    torch.optim.Adam: Adam(),
    torch.optim.AdamW: Adam(),
    torch.optim.NAdam: NAdam(),
    torch.optim.RAdam: RAdam(),
    torch.optim.Adagrad: Adagrad(),
    torch.optim.RMSprop: RMSprop(),
    torch.optim.SGD: SGD(),
}
if hasattr(torch.optim, "Muon"):  # torch before 2.9
    _TORCH[torch.optim.Muon] = Muon()
_LION, _ADAM = Lion(), ForeignAdam()
_OF_ADAM = frozenset(
    {
        "lr", "betas", "eps", "weight_decay", "amsgrad", "maximize", "foreach", "capturable",
        "differentiable", "fused", "decoupled_weight_decay", "correct_bias", "bias_correction",
        "caution", "corrected_weight_decay", "max_lr_snapshot", "clipping_threshold",
    }
)  # fmt: skip
"""Settings of optimizers that do nothing now and then that Adam does not do."""


def family_of(optimizer: torch.optim.Optimizer) -> OptimizerFamily | None:
    """Returns the family whose algebra one of torch's own optimizers has; None if it is not known.

    A class derived from one of torch's may do anything in its own ``step``, so the class itself
    counts, and its ``step`` must be torch's.
    """
    family = _TORCH.get(type(optimizer))
    if family is None or ("step" in vars(optimizer) and not _is_scheduled(optimizer)):
        return None
    return family


def candidate_for(optimizer: torch.optim.Optimizer) -> OptimizerFamily | None:
    """Returns the family that another optimizer may belong to, which its updates have to prove.

    Lion by the name of its class, Adam by its settings.
    """
    if type(optimizer) in _TORCH:
        return None
    is_lion = "lion" in type(optimizer).__name__.lower()
    family: OptimizerFamily = _LION if is_lion else _ADAM
    if not is_lion and not optimizer.defaults.keys() <= _OF_ADAM:
        return None
    return (
        family
        if all(set(family.keys) <= group.keys() for group in optimizer.param_groups)
        else None
    )


def _is_scheduled(optimizer: torch.optim.Optimizer) -> bool:
    """A scheduler wraps ``step`` on the instance, to count its calls."""
    return hasattr(optimizer.step, "_wrapped_by_lr_sched")
