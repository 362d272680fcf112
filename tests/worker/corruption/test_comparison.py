"""Many tensors compared at once, a slice at a time."""

from __future__ import annotations

import pytest
import torch

from supervisor.worker.corruption import comparison as batch
from supervisor.worker.corruption.comparison import WEIGHT, TensorCase, suspects
from supervisor.worker.corruption.limits import Affine, Limits


def case(moved: float) -> TensorCase:
    then = torch.zeros(64)
    return TensorCase({WEIGHT: then}, {WEIGHT: then + moved}, Limits(weight=Affine(constant=1.0)))


@pytest.mark.parametrize("slice_bytes", [1, 600, batch.SLICE_BYTES])
def test_a_suspect_is_found_in_whatever_slice_it_is(
    slice_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "SLICE_BYTES", slice_bytes)
    cases = [case(moved) for moved in (0.5, 2.0, 0.0, float("nan"), 0.9, 3.0, 1.0)]

    assert suspects(cases) == [cases[1], cases[3], cases[5]]


def test_no_more_than_a_slice_is_copied_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "SLICE_BYTES", 600)
    cases = [case(0.0) for _ in range(7)]  # of 256 bytes each

    assert [len(part) for part in batch._slices(cases)] == [3, 3, 1]
