"""Copies of the state in memory, for rollbacks without a restart and for background writes.

Copies reuse the buffers of discarded ones, because the system must map the pages of new memory.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from supervisor.held_memory import BUFFER, SNAPSHOTS, HeldMemory
from supervisor.settings import SnapshotSettings
from supervisor.training_state import device_copies
from supervisor.training_state.device_copies import DONE, Copying
from supervisor.training_state.host_memory import HOST_MEMORY, Arena
from supervisor.training_state.tensors import local, outside_autograd

_ORDINARY = frozenset({torch.Tensor, torch.nn.Parameter})
_SCALARS = frozenset({bool, int, float, str, type(None)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The state as it was before the update of step `step`.

    Attributes:
        step: the boundary at which it was taken.
        held: as from `TrainingState.capture`, copied; on the host.
        extras: what the worker keeps with it (pipeline, counters, data position).
        copying: from devices, maybe still under way.
        size: bytes of all its tensors.
    """

    step: int
    held: dict[str, Any]
    extras: Mapping[str, Any] = field(default_factory=dict)
    copying: Copying = DONE
    size: int = 0

    @property
    def state(self) -> dict[str, Any]:
        """What is `held`, once it is all there."""
        self.copying.wait()
        return self.held


Allocate = Callable[[torch.Tensor], "torch.Tensor | None"]


def copy_state(
    live: Mapping[str, Any],
    into: Mapping[str, Any] | None = None,
    allocate: Allocate = lambda like: None,
) -> dict[str, Any]:
    """Copies a state to the host; tensors of `into` that fit by place, shape and dtype are reused.

    `into` must not be used afterwards. Tied tensors are copied once; copies from CUDA go to pinned
    memory, and it returns when they are there.

    Args:
        live: to be copied.
        into: an earlier copy.
        allocate: returns memory for a copy of its argument that is not in `into`, or None.
    """
    copied, copying = begin_copy(live, into, allocate)
    copying.wait()
    return copied


def begin_copy(
    live: Mapping[str, Any],
    into: Mapping[str, Any] | None = None,
    allocate: Allocate = lambda like: None,
) -> tuple[dict[str, Any], Copying]:
    """As `copy_state`, but copies from devices may still be under way: `live` may be changed by
    what comes on the current streams, the copy not be read before it was waited for."""
    with outside_autograd():
        # What does not fit into an earlier copy is little: its slabs are as small.
        arena = Arena(HOST_MEMORY, () if into else _tensors(live))
        copier = _Copier(allocate, arena)
        copied: dict[str, Any] = copier.copy(dict(live), into)
        return copied, copier.finish()


class _Copier:
    def __init__(self, allocate: Allocate, arena: Arena) -> None:
        self._allocate = allocate
        self._arena = arena
        self._asks_where = device_copies.is_in_use()
        self._devices: set[int] = set()
        self._sources: list[torch.Tensor] = []
        self._targets: list[torch.Tensor] = []
        self._done: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._used: set[int] = set()

    def copy(self, value: Any, into: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._copy_tensor(value, into)
        if isinstance(value, dict):
            return self._copy_dict(value, into if isinstance(into, dict) else {})
        if isinstance(value, (list, tuple)) and value:
            if _SCALARS.issuperset(map(type, value)):
                return type(value)(value)
            places = into if isinstance(into, (list, tuple)) else ()
            padded = [*places, *[None] * (len(value) - len(places))]
            return type(value)(self.copy(*pair) for pair in zip(value, padded, strict=False))
        return value

    def _copy_dict(self, value: dict[Any, Any], into: dict[Any, Any]) -> dict[Any, Any]:
        """The hot loop: nearly all of a state are dicts."""
        copied: dict[Any, Any] = {}
        done, used, place = self._done, self._used, into.get
        for key, item in value.items():
            kind = type(item)
            if kind in _SCALARS:
                copied[key] = item
            elif kind is torch.Tensor or kind is torch.nn.Parameter:
                target = place(key)
                if (
                    type(target) is torch.Tensor
                    and id(target) not in used
                    and id(item) not in done
                    and target.shape == item.shape
                    and target.dtype is item.dtype
                    and item.layout is target.layout is torch.strided
                    and not (self._asks_where and device_copies.on_device(item))
                ):
                    used.add(id(target))
                    done[id(item)] = (item, target)
                    self._sources.append(item)
                    self._targets.append(target)
                    copied[key] = target
                else:
                    copied[key] = self._copy_tensor(item, target)
            else:
                copied[key] = self.copy(item, place(key))
        return copied

    def finish(self) -> Copying:
        return device_copies.copy_aside(self._targets, self._sources, self._devices)

    def _copy_tensor(self, value: torch.Tensor, into: Any) -> torch.Tensor:
        # The original is kept beside its copy: a freed id could be given to the next tensor.
        if id(value) in self._done:
            return self._done[id(value)][1]
        source = value if type(value) in _ORDINARY else local(value)
        if not (
            isinstance(into, torch.Tensor)
            and id(into) not in self._used
            and into.shape == source.shape
            and into.dtype == source.dtype
            and into.layout == source.layout
        ):
            into = self._allocate(source)
        if into is None:
            into = self._arena.like(source)
        reused: torch.Tensor = into
        if source.layout == torch.strided:
            self._sources.append(source)
            self._targets.append(reused)
        else:
            reused.copy_(source)
        if self._asks_where and device_copies.on_device(source):
            self._devices.add(source.device.index or 0)
        self._used.add(id(reused))
        self._done[id(value)] = (value, reused)
        return reused


def state_bytes(state: Mapping[str, Any]) -> int:
    """Returns the bytes of all tensors, tied ones once."""
    return sum(t.numel() * t.element_size() for t in _tensors(state))


def copy_bytes(state: Mapping[str, Any]) -> int:
    """Returns the bytes of a copy's memory."""
    return int(HOST_MEMORY.rounding * state_bytes(state))


def _tensors(state: Mapping[str, Any]) -> list[torch.Tensor]:
    """Of all tensors, tied ones once, what this rank holds of them; in the order of copies."""
    found: dict[int, torch.Tensor] = {}
    waiting: list[Any] = [dict(state)]
    while waiting:
        value = waiting.pop()
        if isinstance(value, torch.Tensor):
            found[id(value)] = value
        elif isinstance(value, (dict, list, tuple)):
            items = value.values() if isinstance(value, dict) else value
            kinds = set(map(type, items))
            if kinds.issubset(_ORDINARY):  # nearly all tensors are in such a dict
                found.update(zip(map(id, items), items, strict=True))
            elif not kinds.issubset(_SCALARS):
                waiting += [item for item in reversed(items) if type(item) not in _SCALARS]
    return [t if type(t) in _ORDINARY else local(t) for t in found.values()]


UNTRAINED_STEPS = 100
"""For so long the untrained state is kept: a false start is found within 60 steps
(`ladder.initial_divergence`)."""


class SnapshotRing:
    """A few snapshots of very different ages, see `least_useful`.

    One more than `SnapshotSettings.depths`, or as many as `HeldMemory` allows. Once a run is old
    enough, there is always one as old as the deepest depth. What is older is on disk.

    Args:
        memory: by default of this process alone, with no copies but these.
        on_disk: step → the newest checkpoint before it that can be loaded; None if there is none.

    Attributes:
        device_s: for which the last copy but one held up the devices (the first: itself). The host
            does not wait for a copy to know that.
    """

    def __init__(
        self,
        settings: SnapshotSettings,
        memory: HeldMemory | None = None,
        on_disk: Callable[[int], Snapshot | None] = lambda step: None,
    ) -> None:
        self.settings = settings
        self.on_disk = on_disk
        self.memory = memory or HeldMemory(settings, first={})
        self._snapshots: list[Snapshot] = []  # oldest first
        self._spare: list[dict[str, Any]] = []
        self._size = 0
        self._ahead = 0  # copies for which memory was made, or is being made
        self.device_s = 0.0

    def take(self, step: int, state: Mapping[str, Any], extras: Mapping[str, Any]) -> float:
        """Copies `state`; returns the seconds that took, 0.0 if memory does not allow it.

        Args:
            step: snapshots of this or a later step are dropped first.
            state: live, from `TrainingState.capture` at a boundary.
            extras: kept as it is; give fresh objects.
        """
        started = time.perf_counter()
        self.drop_after(step - 1)
        self._size = max(1, copy_bytes(state))
        slots = self._fit(step, self._size)
        if slots == 0:
            return 0.0
        while len(self._snapshots) >= slots:
            self._give_up(self._least_useful(step))
        into = self._spare.pop() if self._spare else None
        held = max(len(self._snapshots) + len(self._spare) + 1, self._ahead)
        self.memory.holds(SNAPSHOTS, self._size, held)
        last_s = self._snapshots[-1].copying.device_s() if self._snapshots else None
        copied, copying = begin_copy(state, into)
        self.device_s = copying.device_s() if last_s is None else last_s
        kept = Snapshot(step=step, held=copied, extras=extras, copying=copying, size=self._size)
        self._snapshots.append(kept)
        return time.perf_counter() - started

    def make_ahead(self, step: int, state: Mapping[str, Any]) -> None:
        """Has the memory made for all copies that will be held, with one to write from; `state`
        has its full size by now. While it `is_making`, a snapshot had better wait."""
        tensors = _tensors(state)
        self._size = max(1, copy_bytes(state))
        slots = self._fit(step, self._size)
        if slots and HOST_MEMORY.make_ahead(
            tensors, slots + self.memory.allows(BUFFER, self._size)
        ):
            self._ahead, self._size = slots, copy_bytes(state)
            self.memory.holds(SNAPSHOTS, self._size, slots)

    @property
    def is_making(self) -> bool:
        return HOST_MEMORY.is_making

    def fit(self, step: int) -> None:
        """Gives snapshots back for which there is no room any more."""
        if self._size:
            self._fit(step, self._size)

    def _fit(self, step: int, size: int) -> int:
        wished = len(self.settings.depths) + 1 if self.settings.enabled else 0
        slots = self.memory.snapshots(size, wished)
        held = max(len(self._snapshots) + len(self._spare), self._ahead)
        if held > slots:
            HOST_MEMORY.give_back()
            self._ahead = 0
            while len(self._snapshots) > slots:
                self._drop(self._least_useful(step))
            del self._spare[slots - len(self._snapshots) :]
            self.memory.holds(SNAPSHOTS, self._size, slots)
        return slots

    def before(self, step: int) -> Snapshot | None:
        """Returns the newest snapshot strictly older than `step`; it stays in the ring."""
        older = [snapshot for snapshot in self._snapshots if snapshot.step < step]
        return older[-1] if older else None

    def oldest(self) -> Snapshot | None:
        return self._snapshots[0] if self._snapshots else None

    def newest(self) -> Snapshot | None:
        return self._snapshots[-1] if self._snapshots else None

    def all(self) -> tuple[Snapshot, ...]:
        """The kept snapshots, oldest first."""
        return tuple(self._snapshots)

    def steps(self) -> list[int]:
        """Steps of the kept snapshots, oldest first."""
        return [snapshot.step for snapshot in self._snapshots]

    def drop_after(self, step: int) -> None:
        """Drops all snapshots newer than `step`, as after a rollback to it."""
        for index in reversed(range(len(self._snapshots))):
            if self._snapshots[index].step > step:
                self._give_up(index)

    def clear(self) -> None:
        """Drops everything, when memory runs out or no snapshot is usable any more."""
        while self._snapshots:
            self._drop(0)
        self._spare.clear()
        HOST_MEMORY.give_back()
        self._ahead = 0
        self.memory.holds(SNAPSHOTS, self._size, 0)

    def _give_up(self, index: int) -> None:
        given_up = self._drop(index)
        if 2 * given_up.size > self._size:  # the untrained state is smaller
            self._spare.append(given_up.held)

    def _drop(self, index: int) -> Snapshot:
        """Its memory may be freed or used again: no device writes into it any more."""
        dropped = self._snapshots.pop(index)
        with contextlib.suppress(RuntimeError):  # of a device that has failed
            dropped.copying.wait()
        return dropped

    def _least_useful(self, step: int) -> int:
        ages = [step - s for s in self.steps()]
        found = least_useful(ages, self.settings.depths)
        is_untrained = self._snapshots[found].step == 0 and step <= UNTRAINED_STEPS
        return 1 if is_untrained and len(ages) > 1 else found


def least_useful(ages: Sequence[int], depths: Sequence[int]) -> int:
    """Returns the index of the snapshot to give up before a new one of age 0 is taken.

    Each ages until it has reached its depth: the second oldest then replaces the oldest, the others
    go. With depths 10, 50, 300 the ages are 300 to 600, up to 300, up to 50, and the newest;
    where one comes each 100 steps, 300 to 400, 200, 100 and the newest. With 10 and 50 they are 50
    to 100, up to 50, and the newest.

    Args:
        ages: of the kept snapshots in steps, oldest first, at least one.
        depths: ages wished for, any order.
    """
    count = len(ages)
    wished = sorted(depths)[: max(2, count - 1)] or [0]
    if count == 1:
        return 0
    if count == 2:
        return 0 if ages[0] >= wished[-1] else 1
    if ages[1] >= wished[-1]:
        return 0
    for index in range(2, count - 1):
        if ages[index] >= wished[-index]:
            return index
    return count - 1
