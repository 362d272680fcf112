"""When models that are wrapped for several ranks first average gradients."""

from __future__ import annotations

import weakref
from typing import Any


class FirstAverages:
    """Tells the forwards at which a wrapper (`DistributedDataParallel`) begins: its first one, and
    the one at which it arranges its buckets by what it saw in the backward behind that.

    A replay has to execute these: from then on the wrapper sums in another order. Which wrappers a
    model's forward calls may depend on the step. Wrappers of some ranks alone do not count: the
    others would not take part in what else is exchanged there.
    """

    def __init__(self) -> None:
        self._open: weakref.WeakKeyDictionary[Any, tuple[bool, bool]] = weakref.WeakKeyDictionary()

    def made(self, wrapper: Any) -> None:
        """Called when a wrapper has been made."""
        import torch.distributed as dist

        if wrapper.process_group.size() == dist.get_world_size():
            self._open[wrapper] = _stage(wrapper)

    def has_begun(self) -> bool:
        """Whether one has begun, or arranged its buckets, since this was asked last."""
        if not self._open:
            return False
        found = {wrapper: _stage(wrapper) for wrapper in list(self._open)}
        changed = any(self._open[wrapper] != stage for wrapper, stage in found.items())
        for wrapper, stage in found.items():
            if _is_last(wrapper, stage):
                del self._open[wrapper]
            else:
                self._open[wrapper] = stage
        return changed


def _stage(wrapper: Any) -> tuple[bool, bool]:
    return bool(wrapper._lazy_init_ran), bool(wrapper._has_rebuilt_buckets)


def _is_last(wrapper: Any, stage: tuple[bool, bool]) -> bool:
    """Buckets are never arranged anew where the parts of a graph are looked for at each step."""
    never = wrapper.find_unused_parameters and not wrapper.static_graph
    return stage == (True, True) or (never and stage[0])
