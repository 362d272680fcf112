"""What a piece of code drew from the global random generators, in a few bytes.

All three (Python's, NumPy's, torch's on the CPU) are Mersenne Twisters: 624 words, regenerated when
they are used up, and a position among them. So most draws are described by how often the words
were regenerated and by the rest of the state. A checksum proves the result.
"""

from __future__ import annotations

import random
import struct
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
import xxhash

from supervisor.training_state.device_generators import device_states

_WORDS = 624
_MOST_TURNS = 64
"""Regenerations (40,000 numbers) after which the state itself, 2.5 KB, is written; each costs 4
us."""
_TORCH_WORDS = slice(24, 24 + 8 * _WORDS)
_PYTHON = struct.Struct("<Hd?")
_NUMPY = struct.Struct("<Hid")
_HEAD = struct.Struct("<2sHHIQ")
_TWISTER = np.random.MT19937(0)
_as_array = torch.Tensor.numpy  # before it is patched


class GeneratorState(NamedTuple):
    """State of one generator; `words` are empty if it is no Mersenne Twister."""

    words: bytes
    rest: bytes


Generators: TypeAlias = dict[bytes, GeneratorState]


@dataclass(frozen=True, slots=True)
class _Draw:
    """What was drawn from one generator.

    Attributes:
        turns: how often the words were regenerated; since `words`, if there are any.
        words: if they did not follow from those before.
        rest: of the state afterwards.
        checksum: of the state afterwards.
    """

    turns: int
    words: bytes
    rest: bytes
    checksum: int


def look() -> Generators:
    """Returns the states of all global generators, CUDA's where it is in use; draws from none."""
    _, numbers, gauss = random.getstate()
    rest = _PYTHON.pack(numbers[-1], gauss or 0.0, gauss is not None)
    found = {
        b"p ": GeneratorState(array("I", numbers[:-1]).tobytes(), rest),
        b"n ": _look_at_numpy(),
        b"t ": _look_at_torch(),
    }
    for device, state in enumerate(device_states()):
        found[b"c%c" % device] = GeneratorState(b"", state)
    return found


def between(before: Generators, after: Generators) -> bytes:
    """Returns what was drawn between two looks; nothing if no state has changed."""
    if before == after:
        return b""
    drawn = b""
    for name, state in after.items():
        earlier = before.get(name)
        if state != earlier:
            turns = _turns(earlier, state)
            words = b"" if turns is not None else state.words
            drawn += _pack(name, _Draw(turns or 0, words, state.rest, _checksum(state)))
    return drawn


def joined(first: bytes, second: bytes) -> bytes:
    """Returns what was drawn in both, one after the other."""
    draws = dict(_unpack(first))
    for name, draw in _unpack(second):
        earlier = draws.get(name)
        if earlier is not None and not draw.words:
            turns = earlier.turns + draw.turns
            draw = _Draw(turns, earlier.words, draw.rest, draw.checksum)
        draws[name] = draw
    return b"".join(_pack(name, draw) for name, draw in draws.items())


def advance(drawn: bytes) -> None:
    """Brings the global generators to where they were when all of it had been drawn.

    Raises:
        ValueError: they did not stand where they stood before it was drawn.
    """
    if not drawn:
        return
    now = look()
    for name, draw in _unpack(drawn):
        words = draw.words or now.get(name, GeneratorState(b"", b"")).words
        state = GeneratorState(_turned(words, draw.turns) if draw.turns else words, draw.rest)
        if _checksum(state) != draw.checksum:
            raise ValueError("the random generators are not where they were in the recorded run")
        _restore(name, state)


def _look_at_numpy() -> GeneratorState:
    state: Mapping[str, Any] = np.random.get_state(legacy=False)
    if state["bit_generator"] != "MT19937":
        return GeneratorState(b"", repr(state).encode())
    rest = _NUMPY.pack(state["state"]["pos"], state["has_gauss"], state["gauss"])
    return GeneratorState(state["state"]["key"].astype(np.uint32).tobytes(), rest)


def _look_at_torch() -> GeneratorState:
    whole = _as_array(torch.get_rng_state())
    words = whole[_TORCH_WORDS].view(np.uint64).astype(np.uint32).tobytes()
    rest = whole[: _TORCH_WORDS.start].tobytes() + whole[_TORCH_WORDS.stop :].tobytes()
    return GeneratorState(words, rest)


def _restore(name: bytes, state: GeneratorState) -> None:
    if name == b"p ":
        place, gauss, has_gauss = _PYTHON.unpack(state.rest)
        numbers = (*array("I", state.words), place)
        random.setstate((3, numbers, gauss if has_gauss else None))
    elif name == b"n ":
        if not state.words:
            raise ValueError("NumPy's global generator is of a kind that is not noted")
        place, has_gauss, gauss = _NUMPY.unpack(state.rest)
        keys = np.frombuffer(state.words, np.uint32)
        np.random.set_state(("MT19937", keys, place, has_gauss, gauss))
    elif name == b"t ":
        words = np.frombuffer(state.words, np.uint32).astype(np.uint64).tobytes()
        start = _TORCH_WORDS.start
        whole = bytearray(state.rest[:start] + words + state.rest[start:])
        torch.set_rng_state(torch.frombuffer(whole, dtype=torch.uint8))
    else:
        given = torch.frombuffer(bytearray(state.rest), dtype=torch.uint8)
        torch.cuda.set_rng_state(given, name[1])


def _turns(before: GeneratorState | None, after: GeneratorState) -> int | None:
    """Returns how often the words were regenerated; None if they do not follow from those
    before."""
    if before is None or not before.words or not after.words:
        return None
    if before.words == after.words:
        return 0
    outputs = _outputs(np.frombuffer(after.words, np.uint32))
    twister = _twister(before.words, _WORDS)
    done = 0
    for turns in (1, 3, 12, _MOST_TURNS - 16):  # most draw little
        stretch = twister.random_raw(_WORDS * turns).reshape(turns, _WORDS)
        for turn in np.flatnonzero(stretch[:, 0] == outputs[0]):
            if np.array_equal(stretch[turn], outputs):
                return done + int(turn) + 1
        done += turns
    return None


def _outputs(words: Any) -> Any:
    """The numbers that a Mersenne Twister makes of its words."""
    words = words ^ (words >> 11)
    words = words ^ ((words << 7) & np.uint32(0x9D2C5680))
    words = words ^ ((words << 15) & np.uint32(0xEFC60000))
    return words ^ (words >> 18)


def _turned(words: bytes, turns: int) -> bytes:
    twister = _twister(words, _WORDS)
    twister.random_raw(_WORDS * turns, output=False)
    return bytes(twister.state["state"]["key"].astype(np.uint32).tobytes())


def _twister(words: bytes, place: int) -> np.random.MT19937:
    """NumPy's generator at this place among these words."""
    key = np.frombuffer(words, np.uint32)
    _TWISTER.state = {"bit_generator": "MT19937", "state": {"key": key, "pos": place}}
    return _TWISTER


def _checksum(state: GeneratorState) -> int:
    return xxhash.xxh3_64_intdigest(state.words + state.rest)


def _pack(name: bytes, draw: _Draw) -> bytes:
    sizes = len(draw.words), len(draw.rest)
    return _HEAD.pack(name, *sizes, draw.turns, draw.checksum) + draw.words + draw.rest


def _unpack(drawn: bytes) -> Iterator[tuple[bytes, _Draw]]:
    place = 0
    while place < len(drawn):
        name, words, rest, turns, checksum = _HEAD.unpack_from(drawn, place)
        start = place + _HEAD.size
        middle, place = start + words, start + words + rest
        yield name, _Draw(turns, drawn[start:middle], drawn[middle:place], checksum)
