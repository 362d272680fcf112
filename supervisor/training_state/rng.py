"""The global random number generators: Python, NumPy, torch on the CPU and on every CUDA device."""

from __future__ import annotations

import random
from array import array
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import xxhash

from supervisor.training_state.plain_form import from_plain, to_plain

_python_state = random.getstate  # before they are patched: our looks are not the script's
_numpy_state = np.random.get_state
_torch_state = torch.get_rng_state


class RngState:
    """Captures and restores all global generators together; draws from none of them."""

    @staticmethod
    def capture() -> dict[str, Any]:
        """Returns copies in plain form; CUDA's only if it is in use already."""
        version, words, gauss = _python_state()
        keys = torch.frombuffer(array("q", words), dtype=torch.int64)
        state = {
            "python": {"version": version, "words": keys, "gauss": gauss},
            "numpy": to_plain(_numpy_state(legacy=False), "NumPy generator", []),
            "torch": _torch_state(),
        }
        cuda: Any = torch.cuda
        if cuda.is_initialized():
            state["cuda"] = cuda.get_rng_state_all()
        return state

    @staticmethod
    def restore(state: Mapping[str, Any]) -> None:
        """Sets every generator in `state`; missing CUDA devices are left out."""
        python = state.get("python")
        if python is not None:
            words = tuple(python["words"].numpy().tolist())
            random.setstate((python["version"], words, python["gauss"]))
        if state.get("numpy") is not None:
            np.random.set_state(from_plain(state["numpy"]))
        if state.get("torch") is not None:
            torch.set_rng_state(state["torch"].cpu())
        devices = state.get("cuda") or []
        if devices and torch.cuda.is_available():
            for index, one in enumerate(devices[: torch.cuda.device_count()]):
                torch.cuda.set_rng_state(one.cpu(), index)


def random_position() -> str:
    """Returns a checksum of where Python's, NumPy's and the CPU's generators stand."""
    state = _python_state(), _numpy_state(legacy=True), _torch_state().numpy().tobytes()
    return xxhash.xxh3_64_hexdigest(repr((state[0], _shown(state[1]))).encode() + state[2])


def _shown(state: Any) -> tuple[Any, ...]:
    kind, keys, *rest = state
    return (kind, keys.tobytes(), *rest)


capture = RngState.capture
restore = RngState.restore
