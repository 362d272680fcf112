"""What the live run writes on its tape, and how the same is taken off it again."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from supervisor.storage.steps.tape import EntryKind, TapeReader, TapeWriter, entry_head
from supervisor.training_state.generator_memory import generator_window, whole_state
from supervisor.worker.recording.large_reads import LargeReads

_FLOAT = struct.Struct("<d")
_INT = struct.Struct("<q")
_RANDOM_STATE = int(EntryKind.RANDOM_STATE)
REGIONS = 256
"""A region's number is one byte: nobody takes the state of one for that of 256 regions later."""
_as_array = torch.Tensor.numpy  # before it is patched


def encode(kind: int, value: Any) -> bytes:
    """Returns a value that was read from a tensor as bytes, exactly."""
    if kind == EntryKind.FLOAT:
        return _FLOAT.pack(value)
    if kind == EntryKind.INT:
        return _INT.pack(value)
    if kind == EntryKind.BOOL:
        return b"\1" if value else b"\0"
    if isinstance(value, np.ndarray):
        head = json.dumps({"dtype": value.dtype.str, "shape": value.shape}).encode()
        return b"n" + _INT.pack(len(head)) + head + np.ascontiguousarray(value).tobytes()
    return b"j" + json.dumps(value).encode()  # Python's floats survive JSON exactly


def decode(kind: int, data: bytes) -> Any:
    """The inverse of `encode`."""
    if kind == EntryKind.FLOAT:
        return _FLOAT.unpack(data)[0]
    if kind == EntryKind.INT:
        return _INT.unpack(data)[0]
    if kind == EntryKind.BOOL:
        return data == b"\1"
    if data[:1] == b"n":
        size = _INT.unpack(data[1:9])[0]
        head = json.loads(data[9 : 9 + size])
        return np.frombuffer(data[9 + size :], dtype=head["dtype"]).reshape(head["shape"]).copy()
    return json.loads(data[1:])


class RngRecorder:
    """Notes the state of the global generators behind a region that drew from them.

    Torch's CPU generator is looked at around every forward. The others, and all around backwards,
    are looked at for the first `PROBATION` regions, and later only if one was used there.
    Each state has the number of its region: in a replay no other region takes it.

    Attributes:
        forwards_draw: every forward drew from torch's generator and from no other, so that in
            training mode `note` need not look before; a state too many on the tape does no harm.
        backwards_are_quiet: backwards need no look any more.
        region: number of the last forward or backward.
    """

    PROBATION = 12

    def __init__(self, tape: TapeWriter) -> None:
        self.forwards_draw = False
        self.backwards_are_quiet = False
        self._tape = tape
        self._window = generator_window()
        mark = b"t" if self._window is None else b"m"
        self._head = entry_head(_RANDOM_STATE, 2 + self._torch_state().nbytes) + mark
        self.region = 0
        self._forwards = _Probation(self.PROBATION)
        self._backwards = _Probation(self.PROBATION)
        self._all_drew = True

    def before(self) -> tuple[Any, ...]:
        """Returns what `after` needs; called right before a forward."""
        return self.look() if self._forwards.goes_on else (bytes(self._torch_state()),)

    def after(self, earlier: tuple[Any, ...]) -> None:
        """Called right behind the forward; writes what changed on the tape."""
        self.passed()
        drew = self._note_torch(earlier)
        if len(earlier) > 1:
            self._forwards.passed(used=self._note_others(earlier))
            self._all_drew = self._all_drew and drew
            self.forwards_draw = self._all_drew and not self._forwards.goes_on

    def note(self) -> None:
        """Called right behind a forward that is known to draw: writes torch's state."""
        self.passed()
        self._write_torch()

    def passed(self) -> None:
        """Counts a region; called alone behind a backward that needs no look."""
        self.region = (self.region + 1) % REGIONS

    def before_backward(self) -> tuple[Any, ...]:
        """Returns what `after_backward` needs; not called any more once they are quiet."""
        return self.look()

    def after_backward(self, earlier: tuple[Any, ...]) -> None:
        """Called right behind the backward; writes what changed on the tape."""
        self.passed()
        drew = self._note_torch(earlier)
        drew_others = self._note_others(earlier)
        self._backwards.passed(used=drew or drew_others)
        self.backwards_are_quiet = not self._backwards.goes_on

    def look(self) -> tuple[Any, ...]:
        """Returns the states of all global generators."""
        return bytes(self._torch_state()), random.getstate(), _numpy_state(), _cuda_states()

    def _torch_state(self) -> memoryview:
        """Returns the state of torch's CPU generator, in the form that `_head` says."""
        window = self._window
        return _as_array(torch.default_generator.get_state()).data if window is None else window

    def _note_torch(self, earlier: tuple[Any, ...]) -> bool:
        if bytes(self._torch_state()) == earlier[0]:
            return False
        self._write_torch()
        return True

    def _write_torch(self) -> None:
        window = self._window
        head = self._head + self._number()
        self._tape.append_split(head, self._torch_state() if window is None else window)

    def _number(self) -> bytes:
        return bytes((self.region,))

    def _note_others(self, earlier: tuple[Any, ...]) -> bool:
        drew = False
        if random.getstate() != earlier[1]:
            drew = True
            self._tape.append(_RANDOM_STATE, b"p" + self._number() + _python_bytes())
        if _numpy_state() != earlier[2]:
            drew = True
            self._tape.append(_RANDOM_STATE, b"n" + self._number() + _numpy_state())
        cuda = _cuda_states()
        if cuda != earlier[3]:
            drew = True
            for device, state in enumerate(cuda):
                head = b"c" + self._number() + _INT.pack(device)
                self._tape.append(_RANDOM_STATE, head + state)
        return drew


class _Probation:
    """Goes on for a number of regions, and for ever if one of them was guilty."""

    __slots__ = ("_left", "_used", "goes_on")

    def __init__(self, regions: int) -> None:
        self.goes_on = True
        self._left = regions
        self._used = False

    def passed(self, *, used: bool) -> None:
        self._left -= 1
        self._used = self._used or used
        self.goes_on = self._used or self._left > 0


class RandomReplay:
    """The other side of `RngRecorder`: sets the generators to the noted states.

    Both count the same regions; a state of a later one stays on the tape until that has come.

    Attributes:
        region: number of the last forward or backward.
    """

    def __init__(self, tape: TapeReader) -> None:
        self._tape = tape
        self.region = 0

    def passed(self) -> None:
        """Called behind each forward and each backward: takes the states noted there."""
        self.region = (self.region + 1) % REGIONS
        while self._tape.peek() == EntryKind.RANDOM_STATE:
            _, data = next(self._tape.ahead())
            if data[1] != self.region:
                return
            _set_random(self._tape.take(EntryKind.RANDOM_STATE))


def _set_random(data: bytes) -> None:
    mark, body = data[:1], data[2:]
    if mark == b"t":
        torch.set_rng_state(torch.frombuffer(bytearray(body), dtype=torch.uint8))
    elif mark == b"m":
        torch.set_rng_state(whole_state(body))
    elif mark == b"p":
        version, words, gauss = json.loads(body)
        random.setstate((version, tuple(words), gauss))
    elif mark == b"n":
        head = json.loads(body[: body.index(b"}") + 1])
        keys = np.frombuffer(body[body.index(b"}") + 1 :], dtype=np.uint32)
        np.random.set_state(("MT19937", keys, head["pos"], head["has"], head["gauss"]))
    elif mark == b"c":
        state = torch.frombuffer(bytearray(body[8:]), dtype=torch.uint8)
        torch.cuda.set_rng_state(state, _INT.unpack(body[:8])[0])


def _python_bytes() -> bytes:
    return json.dumps(random.getstate()).encode()


def _numpy_state() -> bytes:
    _, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    head = json.dumps({"pos": int(position), "has": int(has_gauss), "gauss": float(gauss)})
    return head.encode() + np.asarray(keys, dtype=np.uint32).tobytes()


def _cuda_states() -> list[bytes]:
    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):
        return []
    return [state.numpy().tobytes() for state in torch.cuda.get_rng_state_all()]


class Recording:
    """The live side of the tape."""

    def __init__(self, tape: TapeWriter, large: LargeReads) -> None:
        self.tape = tape
        self.large = large
        self.random = RngRecorder(tape)

    def read(self, kind: int, call: Callable[[], Any]) -> Any:
        value = call()
        self.tape.append(kind, encode(kind, value))
        return value
