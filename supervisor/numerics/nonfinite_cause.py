"""Why an operation's result is not finite, with the values that show it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from supervisor.numerics.model_call import is_float

SPREADS = frozenset(
    {"linalg_vector_norm", "norm", "sqrt", "std", "std_mean", "var", "var_mean", "clamp_min"}
)
"""Operations whose result something may be normalised by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationCall:
    """One call of one operation, before it ran.

    Attributes:
        name: without namespace and underscores: ``log``, ``softmax``.
        derivative_of: in the backward pass the operation of the forward pass; else empty.
        makers: for each positional argument the operation that made it; empty if unknown.
    """

    name: str
    derivative_of: str
    module_type: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    output: torch.Tensor
    makers: tuple[str, ...]

    @property
    def type(self) -> str:
        """The type of the output: ``float16``."""
        return str(self.output.dtype).removeprefix("torch.")


Found = tuple[str, str, str] | None
"""Kind, what happened, what to do; None when this is not what happened."""


def special_cause(operation: OperationCall, values: dict[str, float]) -> Found:
    """Looks for causes specific to the kind of operation; adds key figures to `values`.

    Raises:
        IndexError, TypeError, ValueError, RuntimeError: this version of torch passes other
            arguments.
    """
    for names, examine in _EXAMINERS:
        if operation.name in names:
            return examine(operation, values)
    if "batch_norm" in operation.name:
        return _normalisation(operation, values)
    return None


def _elements(number: float) -> str:
    return f"{int(number)} element{'s' * (number != 1)}"


def _softmax(operation: OperationCall, values: dict[str, float]) -> Found:
    scores = operation.args[0]
    dim = operation.args[1] if len(operation.args) > 1 else -1
    masked = (scores == float("-inf")).all(dim=dim)
    values["masked_rows"] = float(masked.sum())
    values["rows"] = float(masked.numel())
    if not values["masked_rows"]:
        return None
    return (
        "all_masked",
        f"attention: {int(values['masked_rows'])} of {masked.numel()} rows of the softmax are "
        "masked entirely, and the softmax of nothing is 0/0",
        "leave at least one key visible in each row, or set such rows to zero afterwards",
    )


def _logarithm(operation: OperationCall, values: dict[str, float]) -> Found:
    argument = operation.args[0] if operation.name != "xlogy" else operation.args[1]
    edge = -1.0 if operation.name == "log1p" else 0.0
    values["zeros"] = float((argument == edge).sum())
    values["negatives"] = float((argument < edge).sum())
    if operation.derivative_of or not (values["zeros"] or values["negatives"]):
        return None
    if values["negatives"]:
        return (
            "log_of_negative",
            f"{operation.name} of negative numbers ({_elements(values['negatives'])}) is NaN",
            "look at what should have kept them positive; clamp before the logarithm",
        )
    return (
        "log_of_zero",
        f"{operation.name} of exactly zero ({_elements(values['zeros'])}) is -infinite",
        "clamp before the logarithm (x.clamp_min(1e-12)), or use log_softmax or a loss on logits",
    )


def _division(operation: OperationCall, values: dict[str, float]) -> Found:
    divides = operation.name != "reciprocal"
    divisor = torch.as_tensor(operation.args[1] if divides else operation.args[0])
    values["zero_divisors"] = float((divisor == 0).sum())
    if operation.derivative_of or not values["zero_divisors"]:
        return None
    maker = (operation.makers[1:2] if divides else operation.makers[:1]) or ("",)
    if maker[0] in SPREADS or "norm" in operation.module_type.lower():
        values["variance_min"] = 0.0
        return _zero_variance(int(values["zero_divisors"]))
    return (
        "division_by_zero",
        f"a division by exactly zero ({_elements(values['zero_divisors'])})",
        "add a small eps to the divisor, or leave those elements out before dividing",
    )


def _root(operation: OperationCall, values: dict[str, float]) -> Found:
    argument = operation.args[0]
    values["zeros"] = float((argument == 0).sum())
    values["negatives"] = float((argument < 0).sum())
    if operation.derivative_of:
        return None
    if values["negatives"]:
        return (
            "root_of_negative",
            f"{operation.name} of negative numbers ({_elements(values['negatives'])}) is NaN",
            "rounding can push a variance below zero: clamp it at 0 and add eps",
        )
    if operation.name == "rsqrt" and values["zeros"]:
        values["variance_min"] = 0.0
        return _zero_variance(int(values["zeros"]))
    return None


def _power(operation: OperationCall, values: dict[str, float]) -> Found:
    base, exponent = (torch.as_tensor(value) for value in operation.args[:2])
    zeros = int(((base == 0) & (exponent < 0)).sum())
    values["zeros"] = float(zeros)
    if operation.derivative_of or not zeros:
        return None
    return (
        "division_by_zero",
        f"a negative power of exactly zero ({_elements(zeros)})",
        "add a small eps to the base",
    )


def _normalisation(operation: OperationCall, values: dict[str, float]) -> Found:
    tensor = operation.args[0].double()
    if operation.name in ("native_layer_norm", "fused_rms_norm"):
        groups = tensor.flatten(-len(operation.args[1])) if operation.args[1] else tensor
    elif operation.name == "native_group_norm":
        groups = tensor.reshape(tensor.shape[0] * int(operation.args[6]), -1)
    else:
        groups = tensor.movedim(1, 0).reshape(tensor.shape[1], -1)
    variance = groups.var(dim=-1, unbiased=False)
    values["variance_min"] = float(variance.min()) if variance.numel() else 0.0
    zero = int((variance == 0).sum())
    return _zero_variance(zero) if zero and not operation.derivative_of else None


def _zero_variance(groups: int) -> tuple[str, str, str]:
    return (
        "zero_variance",
        f"normalisation: zero variance (or norm) in {groups} group{'s' * (groups != 1)}, dividing "
        "by it is 0/0",
        "add eps inside the square root; look for constant inputs (dead units, padding)",
    )


def _exponential(operation: OperationCall, values: dict[str, float]) -> Found:
    limit = torch.finfo(operation.output.dtype).max
    edge = float(torch.tensor(limit, dtype=torch.float64).log())
    return (
        "exp_overflow",
        f"{operation.name} of {values.get('input_0_max', edge):.4g}: above {edge:.4g} the result "
        "is past the largest number of its type",
        "subtract the maximum first (logsumexp, softmax), clamp the argument, or use softplus",
    )


def _reduction(operation: OperationCall, values: dict[str, float]) -> Found:
    elements = operation.args[0].numel()
    if not elements:
        return (
            "empty_reduction",
            f"{operation.name} of no elements at all is NaN",
            "an empty selection or batch: skip it, or divide by max(count, 1)",
        )
    if operation.name not in ("std", "std_mean", "var", "var_mean"):
        return None
    group = elements // max(1, operation.output.numel())
    values["elements"] = float(group)
    # torch divides by the count less 1 (Bessel's correction) unless told otherwise.
    if group > 1 or not values["output_nan"]:
        return None
    return (
        "too_few_elements",
        f"{operation.name} of a single element is 0/0: it divides by the count less one",
        "leave a last batch of one sample out (drop_last=True), or use unbiased=False and an eps",
    )


def _loss_of_targets(operation: OperationCall, values: dict[str, float]) -> Found:
    ignored = operation.args[4] if len(operation.args) > 4 else -100
    used = int((operation.args[1] != ignored).sum())
    values["targets_used"] = float(used)
    if used:
        return None
    return (
        "no_targets",
        f"every target of the batch is ignored (ignore_index {ignored}): a mean of nothing",
        "leave such batches out, or sum and divide by max(count, 1)",
    )


def _inverse_function(operation: OperationCall, values: dict[str, float]) -> Found:
    return (
        "outside_domain",
        f"{operation.name} is not defined at some of its arguments",
        "clamp them slightly inside the domain",
    )


def _cast(operation: OperationCall, values: dict[str, float]) -> Found:
    largest = torch.finfo(operation.output.dtype).max
    return (
        "cast_overflow",
        f"a conversion to {operation.type}, whose largest number is {largest:.4g}",
        "keep it in FP32 or use BF16; find which layer makes such large values",
    )


_EXAMINERS: tuple[
    tuple[frozenset[str], Callable[[OperationCall, dict[str, float]], Found]], ...
] = (
    (frozenset({"softmax", "log_softmax", "safe_softmax"}), _softmax),
    (frozenset({"log", "log2", "log10", "log1p", "xlogy"}), _logarithm),
    (frozenset({"div", "reciprocal", "true_divide", "remainder", "fmod"}), _division),
    (frozenset({"sqrt", "rsqrt"}), _root),
    (frozenset({"pow"}), _power),
    (frozenset({"native_layer_norm", "native_group_norm", "fused_rms_norm"}), _normalisation),
    (frozenset({"exp", "exp2", "expm1", "sinh", "cosh"}), _exponential),
    (
        frozenset({"mean", "std", "std_mean", "var", "var_mean", "max", "min", "logsumexp"}),
        _reduction,
    ),
    (frozenset({"nll_loss_forward", "nll_loss2d_forward"}), _loss_of_targets),
    (frozenset({"acos", "asin", "atanh", "acosh", "lgamma", "digamma"}), _inverse_function),
    (frozenset({"to_copy", "copy"}), _cast),
)


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
