"""The global random number generators: Python, NumPy, torch on the CPU and on every CUDA device.

Reads the state of torch's CPU generator directly from its memory.

`Generator.get_state` allocates 5 KB at every call (docs/design/judging.md). The layout
(`at::CPUGeneratorImpl`) is checked on a generator of our own first; if it differs, torch is asked.
"""

from __future__ import annotations

import ctypes
import random
import struct
from array import array
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import xxhash

from supervisor.training_state.device_generators import device_states
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
        devices = device_states()
        if devices:
            state["cuda"] = [torch.frombuffer(bytearray(d), dtype=torch.uint8) for d in devices]
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


_WORDS = 624
_SEARCHED_BYTES = 256
_POINTER_OFFSET = object.__basicsize__
"""Of the address in a `torch.Generator`, right after Python's object header."""

_MEMORY = struct.Struct(f"<Qi?xxxI{4 * _WORDS}sxxxxf?xxxd?xxxxxxx")
_WHOLE = struct.Struct(f"<QiiQ{8 * _WORDS}sdddixxxxf?xxx")
_HEAD_BYTES = struct.calcsize("<Qi?xxxI")


def generator_window(generator: torch.Generator | None = None) -> memoryview | None:
    """Returns a live view of the memory that holds a CPU generator's state.

    Called once per process, after torch was imported; draws from no generator of the script's.

    Args:
        generator: torch's default generator, if None. It must outlive the view.

    Returns:
        Bytes for `whole_state`; None if this torch lays the state out differently, or the system is
        not Linux.
    """
    try:
        if not _is_as_expected():
            return None
        return _window(torch.default_generator if generator is None else generator)
    except (OSError, ValueError, struct.error, RuntimeError):
        return None


def whole_state(memory: bytes) -> torch.Tensor:
    """Returns what `Generator.get_state` would have returned, from the bytes of a window.

    Raises:
        struct.error: `memory` is of another length.
    """
    seed, left, seeded, following, words, single, has_single, double, has_double = _MEMORY.unpack(
        memory
    )
    whole = _WHOLE.pack(
        *(seed, left, seeded, following, np.frombuffer(words, "<u4").astype("<u8").tobytes()),
        *(0.0, double if has_double else 0.0, 0.0, has_double),
        *(single if has_single else 0.0, has_single),
    )
    return torch.frombuffer(bytearray(whole), dtype=torch.uint8)


def _window(generator: torch.Generator) -> memoryview:
    """Finds the state by its content.

    Raises:
        ValueError: it is not where it is expected.
    """
    whole = generator.get_state().numpy().tobytes()
    fits = type(generator).__basicsize__ >= _POINTER_OFFSET + ctypes.sizeof(ctypes.c_void_p)
    if len(whole) != _WHOLE.size or not fits:
        raise ValueError("another kind of generator")
    words = np.frombuffer(_WHOLE.unpack(whole)[4], "<u8").astype("<u4").tobytes()
    address = ctypes.c_void_p.from_address(id(generator) + _POINTER_OFFSET).value or 0
    searched = _SEARCHED_BYTES + len(words)
    if not _is_readable(address, searched):
        raise ValueError("no address where one is looked for")
    offset = ctypes.string_at(address, searched).index(words) - _HEAD_BYTES
    if offset < 0 or offset % 8:
        raise ValueError("another layout")
    return memoryview((ctypes.c_char * _MEMORY.size).from_address(address + offset)).cast("B")


def _is_readable(address: int, size: int) -> bool:
    """Whether this process may read there; a wrong address must not crash it.

    Raises:
        OSError: the system does not tell (it is not Linux).
    """
    with open("/proc/self/maps") as file:
        for line in file:
            place, rights = line.split(maxsplit=2)[:2]
            start, end = (int(bound, 16) for bound in place.split("-"))
            if start <= address and address + size <= end:
                return rights.startswith("rw")
    return False


def _is_as_expected() -> bool:
    """Whether every kind of state of a test generator reads as torch returns it."""
    generator = torch.Generator()
    generator.manual_seed(20)
    window = _window(generator)

    def agrees() -> bool:
        return torch.equal(whole_state(bytes(window)), generator.get_state())

    found = agrees()
    torch.randn(1, generator=generator)  # leaves the other half of a normal pair behind
    found = found and agrees()
    torch.randn(1, generator=generator, dtype=torch.float64)
    torch.rand(_WORDS + 1, generator=generator)  # past the end of the words, which are made anew
    found = found and agrees()
    state = bytearray(generator.get_state().numpy().tobytes())
    struct.pack_into("<f?", state, _WHOLE.size - 8, 0.5, True)  # a single float of a pair
    generator.set_state(torch.frombuffer(state, dtype=torch.uint8))
    return found and agrees()
