"""Where the random generators of CUDA devices stand, by seed and offset.

They are Philox: both numbers are all of their state. To ask for them touches no device and makes no
tensor, unlike `Generator.get_state`, and none of the patches by which looks of the script are seen.
"""

from __future__ import annotations

import struct
from typing import Any

import torch

_STATE = struct.Struct("<Qq")
_FAR = 1 << 33
"""Above 32 bits, and a multiple of 4 as Philox needs."""
_TOLD: dict[type, bool] = {}
"""Kind of generator → whether seed and offset are its state as torch lays it out."""
_as_array = torch.Tensor.numpy  # before it is patched


def device_states() -> list[bytes]:
    """Returns the state of each device's generator, as `Generator.get_state` would; none before
    CUDA is in use. Not to be called while a graph is captured: there torch raises."""
    if not torch.cuda.is_initialized():
        return []
    return [_state(generator) for generator in torch.cuda.default_generators]


def _state(generator: Any) -> bytes:
    kind = type(generator)
    if kind not in _TOLD:
        _TOLD[kind] = _is_told_by_offset()
    if _TOLD[kind]:
        return _STATE.pack(generator.initial_seed(), generator.get_offset())
    return bytes(_as_array(generator.get_state()).tobytes())


def _is_told_by_offset() -> bool:
    """Whether torch lays out the state so, tried on a generator of our own."""
    try:
        own = torch.cuda.default_generators[0].clone_state()
        own.set_offset(_FAR)
        told = _STATE.pack(own.initial_seed(), own.get_offset())
        return bool(own.get_offset() == _FAR and told == _as_array(own.get_state()).tobytes())
    except (AttributeError, RuntimeError, struct.error):
        return False
