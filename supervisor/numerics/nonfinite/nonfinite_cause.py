"""Why an operation's result is not finite, with the values that show it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from supervisor.numerics.forward.tensor_tree import is_float
from supervisor.numerics.nonfinite.operation_cause import Found, OperationCall, special_cause

PROJECTIONS = frozenset(
    {"addbmm", "addmm", "addmv", "baddbmm", "bmm", "convolution", "dot", "linear", "mm", "mv",
     "mkldnn_convolution", "mkldnn_linear", "cudnn_convolution", "einsum"}
)  # fmt: skip
HALVES = (torch.float16, torch.bfloat16)
IMAGE_LINE = 20.0
"""Normalised images stay within a few units; raw ones reach 255."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NonfiniteCause:
    """What happened.

    Attributes:
        kind: a code in snake case: ``log_of_zero``.
        message: one sentence.
        fix: what to do.
        values: the key figures.
    """

    kind: str
    message: str
    fix: str
    values: Mapping[str, float]


def cause_of(operation: OperationCall) -> NonfiniteCause:
    """Returns the likely cause; if none fits, an overflow or an invalid operation."""
    values = _ranges(operation)
    for fits in (special_cause, _derivative, _projection, _own_number, _overflow):
        try:
            found = fits(operation, values)
        except (IndexError, TypeError, ValueError, RuntimeError):
            continue  # another version of torch passes its arguments otherwise
        if found is not None:
            kind, message, fix = found
            return NonfiniteCause(kind=kind, message=message, fix=fix, values=values)
    raise AssertionError("an overflow always fits")


def _ranges(operation: OperationCall) -> dict[str, float]:
    values: dict[str, float] = {}
    tensors = [arg for arg in operation.args if isinstance(arg, torch.Tensor) and is_float(arg)]
    for index, tensor in enumerate(tensors):
        sound = tensor[torch.isfinite(tensor)] if not tensor.is_complex() else tensor.abs()
        if sound.numel():
            values[f"input_{index}_min"] = float(sound.min())
            values[f"input_{index}_max"] = float(sound.max())
    values["output_nan"] = float(operation.output.isnan().sum())
    values["output_inf"] = float(operation.output.isinf().sum())
    return values


def _derivative(operation: OperationCall, values: dict[str, float]) -> Found:
    if not operation.derivative_of:
        return None
    if values.get("zero_divisors") or values.get("zeros"):
        return (
            "infinite_derivative",
            f"the derivative of {operation.derivative_of} is infinite at 0, where some of its "
            "inputs are",
            "keep it away from 0 before, as in sqrt(x + eps); torch.where after it does not help",
        )
    kind = "NaN" if values["output_nan"] else "infinite"
    return (
        "gradient_overflow",
        f"the gradient of {operation.derivative_of} becomes {kind} in {operation.type}",
        "lower the loss scale or use BF16; clip what enters this layer",
    )


def _projection(operation: OperationCall, values: dict[str, float]) -> Found:
    if operation.name not in PROJECTIONS:
        return None
    tensors = [arg for arg in operation.args if isinstance(arg, torch.Tensor) and is_float(arg)]
    image = next((t for t in tensors if t.dim() == 4 and t.shape[1] in (1, 3, 4)), None)
    if operation.name.endswith("convolution") and image is tensors[0]:
        values["image_max"] = float(image.abs().max())
        if values["image_max"] > IMAGE_LINE:
            return (
                "vision_input_range",
                f"vision input out of range: values reach {values['image_max']:.4g}",
                "scale images to 0...1 and normalise them before the first convolution",
            )
    if operation.output.dtype in HALVES:
        largest = torch.finfo(operation.output.dtype).max
        reached = _product_in_fp32(operation, tensors)
        if reached is not None:
            values["fp32_max"] = reached
        exceeds = "exceeds" if reached is None else f"would reach {reached:.4g} and so exceeds"
        return (
            "projection_overflow",
            f"a projection in {operation.type} {exceeds} {largest:.4g}, its largest number",
            "run this layer in FP32 or BF16, or scale its input or weights down",
        )
    return None


def _product_in_fp32(operation: OperationCall, tensors: list[torch.Tensor]) -> float | None:
    """The largest magnitude of the product in FP32; None if the operation is no product."""
    if operation.name not in ("mm", "bmm", "addmm", "baddbmm") or len(tensors) < 2:
        return None
    reached = float((tensors[-2].float() @ tensors[-1].float()).abs().max())
    return reached if reached < float("inf") else None


def _own_number(operation: OperationCall, values: dict[str, float]) -> Found:
    """A number that the code hands over, as in ``gradient.fill_(nan)``: no tensor is to blame."""
    numbers = [arg for arg in operation.args if isinstance(arg, float) and not math.isfinite(arg)]
    if not numbers:
        return None
    return (
        "nonfinite_number",
        f"{operation.name} is given the number {numbers[0]} by the code",
        "look for where the script computes or writes this number",
    )


def _overflow(operation: OperationCall, values: dict[str, float]) -> tuple[str, str, str]:
    if values["output_nan"]:
        return (
            "invalid_operation",
            f"{operation.name} has no defined result for these inputs (infinity times zero, "
            "infinity minus infinity)",
            "look at the infinities among its inputs",
        )
    largest = torch.finfo(operation.output.dtype).max
    return (
        "overflow",
        f"the result of {operation.name} exceeds {largest:.4g}, the largest number of "
        f"{operation.type}",
        "use a type with a wider range (BF16, FP32), or bound the values before",
    )
