"""Whether one flipped bit explains a value."""

from __future__ import annotations

import struct

import torch

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
