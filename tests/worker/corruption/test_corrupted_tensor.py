"""Which bit explains a value."""

from __future__ import annotations

import pytest
import torch

from supervisor.worker.corruption.corrupted_tensor import flipped_bit, with_flipped_bit


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_each_flipped_bit_is_named(dtype: torch.dtype) -> None:
    before = float(torch.tensor(0.01953125, dtype=dtype))
    bits = torch.finfo(dtype).bits

    for bit in range(bits):
        value = with_flipped_bit(before, bit, dtype)

        assert flipped_bit(value, before, 0.0, dtype) == bit


def test_a_value_of_its_own_has_no_bit() -> None:
    assert flipped_bit(1e6, 0.02, 0.001, torch.float32) is None
    assert flipped_bit(3, 2, 0.1, torch.int64) is None
