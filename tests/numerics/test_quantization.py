"""`analyze_tensor`: what is lost in a small format."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.errors import UsageError
from supervisor.numerics.figures import Level
from supervisor.numerics.number_format import FORMATS
from supervisor.numerics.quantization import analyze_tensor, analyze_tensors


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def mostly_ones(value: float, share: float) -> torch.Tensor:
    tensor = torch.ones(1000)
    tensor[: int(1000 * share)] = value
    return tensor


@pytest.mark.parametrize(
    ("dtype", "lost", "kept"),
    [
        ("fp16", 5.9e-8, 6.0e-8),
        ("bf16", 1.1e-38, 1.2e-38),
        ("fp8_e4m3", 1.9e-3, 2.0e-3),
        ("fp8_e5m2", 1.5e-5, 1.6e-5),
    ],
)
def test_underflow_begins_at_the_line_of_the_format(dtype: str, lost: float, kept: float) -> None:
    assert analyze_tensor(mostly_ones(lost, 0.05), dtype).underflow_share == 0.05
    assert analyze_tensor(mostly_ones(kept, 0.05), dtype).underflow_share == 0.0


@pytest.mark.parametrize(
    ("share", "level"),
    [(0.01, Level.OK), (0.011, Level.WARNING), (0.1, Level.WARNING), (0.101, Level.SEVERE)],
)
def test_above_one_percent_is_a_warning_and_above_ten_severe(share: float, level: Level) -> None:
    tensor = mostly_ones(1e-8, share).expand(4, -1).contiguous()

    result = analyze_tensor(tensor, "fp16")

    # The spread over the long dimension is a matter of its own.
    judged = [level] if level is not Level.OK else [Level.OK, Level.WARNING]
    assert result.level in judged


@pytest.mark.parametrize(("dtype", "top"), [("fp16", 65504.0), ("fp8_e4m3", 448.0)])
def test_values_past_the_largest_number_are_saturated(dtype: str, top: float) -> None:
    result = analyze_tensor(torch.tensor([1.0, top, top * 1.1, -top * 2]), dtype)

    assert result.saturated_share == 0.5
    assert result.level is Level.SEVERE
    assert f"exceed {top:.4g}" in result.advice[0]


def test_a_single_overflow_is_severe_in_fp16() -> None:
    tensor = torch.ones(100, 100)
    tensor[0, 0] = 1e6

    assert analyze_tensor(tensor, "fp16").level is Level.SEVERE


def test_nan_and_infinities_of_the_input_are_counted_and_left_out() -> None:
    tensor = torch.tensor([1.0, float("nan"), float("inf"), -float("inf"), 2.0])

    result = analyze_tensor(tensor, "fp16")

    assert (result.nan_count, result.inf_count) == (1, 2)
    assert result.level is Level.SEVERE
    assert result.saturated_share == 0.0
    assert result.largest == 2.0


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_the_dimension_of_an_outlier_slice_is_named(dim: int) -> None:
    tensor = torch.rand(6, 7, 8) + 0.5
    tensor.select(dim, 3).mul_(1e5)

    result = analyze_tensor(tensor, "bf16")

    assert [d.loses_addends for d in result.dimensions] == [d == dim for d in range(3)]
    assert result.dimensions[dim].max_ratio > 1e4
    assert result.level is Level.WARNING
    assert f"over dimension {dim} in FP32" in result.advice[0]


def test_a_long_sum_of_equal_signs_is_to_be_done_in_fp32() -> None:
    tensor = torch.rand(3, 3000) + 0.5

    result = analyze_tensor(tensor, "bf16")

    assert result.dimensions[1].reduction_error > 0.5
    assert result.dimensions[0].reduction_error < 0.01
    assert "over dimension 1 (size 3000) in FP32" in result.advice[0]


def test_the_error_of_a_slice_is_that_of_its_rounding() -> None:
    tensor = torch.ones(4, 2)
    tensor[2] = 1.0 + 2**-9

    result = analyze_tensor(tensor, "bf16")

    assert result.dimensions[0].index == 2
    assert result.dimensions[0].error == pytest.approx(2**-9, rel=0.01)


def test_a_scale_that_rescues_small_values_is_suggested() -> None:
    result = analyze_tensor(torch.rand(100) * 1e-8 + 1e-9, "fp16")

    assert result.underflow_share == 1.0
    assert "multiply by 2^" in result.advice[0]


@pytest.mark.parametrize(
    "tensor",
    [torch.tensor(3.0), torch.zeros(0, 3), torch.zeros(4), torch.ones(2, dtype=torch.half)],
)
def test_degenerate_tensors_are_fine(tensor: torch.Tensor) -> None:
    result = analyze_tensor(tensor, "fp16")

    assert result.level is Level.OK
    assert result.advice == ()


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(3),
        torch.ones(2, dtype=torch.cfloat),
        torch.eye(2).to_sparse(),
        torch.ones(2, device="meta"),
        [1.0],
    ],
)
def test_what_holds_no_real_floating_numbers_is_refused(tensor: object) -> None:
    with pytest.raises(UsageError, match=r"^tensor: "):
        analyze_tensor(tensor, "fp16")  # type: ignore[arg-type]


def test_a_state_dict_is_analysed_tensor_by_tensor() -> None:
    state = torch.nn.BatchNorm1d(3).state_dict()

    report = analyze_tensors(state, "fp8_e5m2")

    assert [t.name for t in report.tensors] == ["weight", "bias", "running_mean", "running_var"]
    assert report.skipped == ("num_batches_tracked",)
    assert "running_var" in repr(report)


def test_the_document_has_the_promised_fields() -> None:
    document = analyze_tensors({"w": torch.randn(3, 4)}, "fp16").to_dict()

    fields = {"name", "dtype", "underflow_share", "saturated_share", "level", "dimensions"}
    assert fields | {"advice"} <= set(document["tensors"][0])
    assert {"dim", "max_ratio"} <= set(document["tensors"][0]["dimensions"][0])


@given(
    values=st.lists(st.floats(width=32), max_size=12),
    dtype=st.sampled_from(sorted(FORMATS)),
)
@settings(max_examples=50, deadline=None)
def test_shares_and_errors_stay_in_their_bounds(values: list[float], dtype: str) -> None:
    tensor = torch.tensor(values, dtype=torch.float32)

    result = analyze_tensor(tensor, dtype)

    assert 0 <= result.underflow_share <= 1
    assert 0 <= result.saturated_share <= 1
    assert 0 <= result.relative_error <= 1
    assert result.nan_count + result.inf_count <= len(values)


@pytest.mark.parametrize(
    ("dtype", "level"), [("bf16", "ok"), ("fp16", "ok"), ("fp8_e5m2", "ok"), ("fp8_e4m3", "severe")]
)
def test_a_mask_is_severe_only_where_the_format_has_no_infinity(dtype: str, level: str) -> None:
    mask = torch.triu(torch.full((32, 32), -math.inf), 1)

    analysis = analyze_tensor(mask, dtype)

    assert (analysis.level.value, len(analysis.advice)) == (level, 1)
    assert analysis.advice[0].startswith("a mask: ")


def test_an_infinity_among_numbers_is_no_mask() -> None:
    assert analyze_tensor(torch.tensor([1.0, -math.inf, 2.0])).level.value == "severe"
    assert analyze_tensor(torch.tensor([0.0, math.inf])).level.value == "severe"


def test_a_mask_of_the_lowest_number_of_fp32_is_told_what_to_take() -> None:
    mask = torch.triu(torch.full((8, 8), torch.finfo(torch.float32).min), 1)

    analysis = analyze_tensor(mask, "fp16")

    assert analysis.level.value == "warning"
    assert "torch.finfo of the type in use" in analysis.advice[0]


def test_positions_are_told_from_where_on_they_are_rounded() -> None:
    (advice,) = analyze_tensor(torch.arange(5000.0), "bf16").advice

    assert "above 256 bf16 rounds them" in advice
    assert analyze_tensor(torch.arange(200.0), "bf16").level.value == "ok"
