"""Reads the state of torch's CPU generator directly from its memory.

`Generator.get_state` allocates 5 KB at every call (docs/design/judging.md). The layout
(`at::CPUGeneratorImpl`) is checked on a generator of our own first; if it differs, torch is asked.
"""

from __future__ import annotations

import ctypes
import struct

import torch

_WORDS = 624
_SEARCHED_BYTES = 256
_POINTER_OFFSET = object.__basicsize__
"""Of the address in a `torch.Generator`, right after Python's object header."""

_MEMORY = struct.Struct(f"<Qi?xxxI{_WORDS}Ixxxxf?xxxd?xxxxxxx")
_WHOLE = struct.Struct(f"<QiiQ{_WORDS}Qdddixxxxf?xxx")
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
    seed, left, seeded, following, *rest = _MEMORY.unpack(memory)
    words = rest[:_WORDS]
    single, has_single, double, has_double = rest[_WORDS:]
    whole = _WHOLE.pack(
        *(seed, left, seeded, following, *words),
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
    words = struct.pack(f"<{_WORDS}I", *_WHOLE.unpack(whole)[4 : 4 + _WORDS])
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
