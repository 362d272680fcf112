"""The states of the global random generators, where a replay needs them.

A replay runs no regions, so behind one that drew its generators stand elsewhere. That matters only
if the script itself draws or looks before the next region sets in: then, and only then, the state
behind the region goes on the replay log, at the place where the replay comes out of it.

The random numbers with which a run began: an unseeded script resumes like a seeded one.

Without a seed every process starts its generators elsewhere, so a replay would build another model
and shuffle other data. The first attempt notes where they stood; later ones begin there.
"""

from __future__ import annotations

import io
import json
import os
import random
import struct
import threading
import weakref
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from supervisor.errors import CheckpointError
from supervisor.storage.files.private_files import write_private
from supervisor.storage.steps.replay_log import HEAD, EntryKind, ReplayLogWriter
from supervisor.storage.steps.replay_log_reader import ReplayLogReader
from supervisor.training_state.device_generators import device_states
from supervisor.training_state.rng import RngState, generator_window, whole_state

_STATE = struct.Struct("<cBQ")
_RANDOM_STATE = int(EntryKind.RANDOM_STATE)
_as_array = torch.Tensor.numpy  # before it is patched
_torch_state = torch.get_rng_state
_python_state = random.getstate
_numpy_get_state = np.random.get_state


class ReadsRandom(Protocol):
    """Both sides: told when the script looks at the state of a global random generator."""

    def was_read(self) -> None: ...


class RngRecorder:
    """Compares the global generators at the entry and the exit of regions.

    Each state has the number of its region: in a replay no other region takes it.

    Torch's CPU generator is looked at around every forward. The others, and all around backwards,
    are looked at for the first `PROBATION` regions, and later only if one was used there.

    Attributes:
        backwards_are_quiet: backwards need no look any more, and are only counted in `region`.
        region: number of the last forward or backward.
    """

    PROBATION = 12

    def __init__(self, replay_log: ReplayLogWriter) -> None:
        self.backwards_are_quiet = False
        self.region = 0
        self._replay_log = replay_log
        self._window = generator_window()
        self._torch = _Behind("t" if self._window is None else "m")
        self._others: dict[str, _Behind] = {}
        self._forwards = _Probation(self.PROBATION)
        self._backwards = _Probation(self.PROBATION)
        self._thread = threading.get_ident()
        replay_log.before_writing = self.was_read
        replay_log.before_marking = self.read
        _call_before_forks(self)

    def before(self) -> tuple[Any, ...]:
        """Returns what `after` needs; called right before a forward."""
        if self._others or self._forwards.goes_on:
            return self.read()
        window = self._window
        now = self._torch_now() if window is None else bytes(window)
        if self._torch.state is not None and self._torch.state != now:
            self._write(self._torch)
        return (now,)

    def after(self, earlier: tuple[Any, ...]) -> None:
        """Called right behind the forward."""
        self.region += 1
        self._left_torch(earlier)
        if len(earlier) > 1:
            self._forwards.passed(used=self._left_others(earlier))

    def after_backward(self, earlier: tuple[Any, ...]) -> None:
        """Called right behind the backward, with what `read` returned before it."""
        self.region += 1
        drew, others_drew = self._left_torch(earlier), self._left_others(earlier)
        self._backwards.passed(used=drew or others_drew)
        self.backwards_are_quiet = not self._backwards.goes_on

    def read(self) -> tuple[Any, ...]:
        """Returns the states of all global generators, at the entry of a region."""
        now = self._torch_now(), _others_now()
        if self._torch.state is not None and self._torch.state != now[0]:
            self._write(self._torch)
        for behind in self._others.values():
            if behind.state is not None and behind.state != now[1].get(behind.name):
                self._write(behind)
        return now

    def was_read(self) -> None:
        """The script looks at the states, or the replay log is written out: what a replay would not
        have goes on it now."""
        if threading.get_ident() == self._thread:
            for behind in (self._torch, *self._others.values()):
                if behind.state is not None:
                    self._write(behind)

    def _left_torch(self, earlier: tuple[Any, ...]) -> bool:
        window, behind = self._window, self._torch
        now = self._torch_now() if window is None else bytes(window)
        drew: bool = now != earlier[0]
        if drew or behind.state is not None:  # else the replay has the right one
            behind.state, behind.place, behind.region = now, self._replay_log.offset, self.region
        return drew

    def _left_others(self, earlier: tuple[Any, ...]) -> bool:
        drew = False
        for name, state in _others_now().items():
            behind = self._others.get(name)
            if state != earlier[1].get(name):
                drew = True
                if behind is None:
                    behind = self._others[name] = _Behind(name)
                behind.put(state, self._replay_log.offset, self.region)
            elif behind is not None and behind.state is not None:
                behind.put(state, self._replay_log.offset, self.region)
        return drew

    def _torch_now(self) -> bytes:
        """The state of torch's CPU generator, in the form that its mark says."""
        window = self._window
        return bytes(_as_array(_torch_state()).data if window is None else window)

    def _write(self, behind: _Behind) -> None:
        data = behind.encoded()
        behind.state = None
        self._replay_log.insert(behind.place, _RANDOM_STATE, data)
        for other in (self._torch, *self._others.values()):
            if other.place > behind.place:
                other.place += HEAD.size + len(data)


class _Behind:
    """A generator's state behind the last region; None if a replay has it anyway."""

    __slots__ = ("name", "place", "region", "state")

    def __init__(self, name: str) -> None:
        self.name = name
        self.state: Any = None
        self.place = 0
        self.region = 0

    def put(self, state: Any, place: int, region: int) -> None:
        self.state, self.place, self.region = state, place, region

    def encoded(self) -> bytes:
        device = int(self.name[1:]) if self.name[0] == "c" else 0
        head = _STATE.pack(self.name[:1].encode(), device, self.region)
        return head + (json.dumps(self.state).encode() if self.name == "p" else bytes(self.state))


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

    Both count the same regions; a state of a later one stays on the replay log until that has come.

    Attributes:
        region: number of the last forward or backward.
    """

    def __init__(self, replay_log: ReplayLogReader) -> None:
        self._replay_log = replay_log
        self.region = 0

    def was_read(self) -> None:
        """What the script looks at is as it was: the replay log has it."""

    def passed(self) -> None:
        """Called behind each forward and each backward: takes the states noted there.

        Raises:
            ReplayError: the replay log is damaged.
        """
        self.region += 1
        while self._replay_log.peek() == _RANDOM_STATE:
            data = self._replay_log.find_next(_RANDOM_STATE) or b""
            if _STATE.unpack_from(data)[2] != self.region:
                return
            _set_random(self._replay_log.take(_RANDOM_STATE))


def _set_random(data: bytes) -> None:
    mark, device, _ = _STATE.unpack_from(data)
    body = data[_STATE.size :]
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
        torch.cuda.set_rng_state(torch.frombuffer(bytearray(body), dtype=torch.uint8), device)


def _call_before_forks(recorder: RngRecorder) -> None:
    """A child of the script's own goes on with its states."""
    known = weakref.ref(recorder)

    def before() -> None:
        found = known()
        if found is not None:
            found.was_read()

    os.register_at_fork(before=before)


def _others_now() -> dict[str, Any]:
    states: dict[str, Any] = {"p": _python_state(), "n": _numpy_state()}
    for device, state in enumerate(device_states()):
        states[f"c{device}"] = state
    return states


def _numpy_state() -> bytes:
    _, keys, position, has_gauss, gauss = _numpy_get_state(legacy=True)
    head = json.dumps({"pos": int(position), "has": int(has_gauss), "gauss": float(gauss)})
    return head.encode() + np.asarray(keys, dtype=np.uint32).tobytes()


def note_first_random(path: Path) -> int:
    """Writes where the global generators stand; called before the script draws from them.

    CUDA's are not there yet: they get a seed of our drawing, as torch itself would draw one.

    Returns:
        That seed, another one in each run.

    Raises:
        OSError: the disk refuses.
    """
    seed = int.from_bytes(os.urandom(6), "little")
    torch.cuda.manual_seed_all(seed)
    buffer = io.BytesIO()
    torch.save({"cuda_seed": seed, "rng": RngState.capture()}, buffer)
    write_private(path, buffer.getvalue(), durable=True)
    return seed


def begin_with_first_random(path: Path) -> int | None:
    """Sets the generators to what the run's first attempt noted; leaves them without a note.

    Returns:
        The seed that it noted; None without a note.

    Raises:
        CheckpointError: the note cannot be read.
    """
    if not path.exists():
        return None
    try:
        noted = torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:  # torch raises many kinds for a damaged file
        raise CheckpointError(f"{path}: cannot be read ({error}): resume approximately") from error
    torch.cuda.manual_seed_all(noted["cuda_seed"])
    RngState.restore(noted["rng"])
    return int(noted["cuda_seed"])
