"""Parts of a model whose backward averages gradients over ranks, where torch's reducer does it."""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.nn import Module
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel

_REPLICATE = "torch.distributed._composable.replicate"
"""Imported by scripts that use it: it brings much of torch with it."""


class AveragingParts:
    """Finds those of each module: wrappers (`DistributedDataParallel`), and what torch's
    `replicate` has been called with, which keeps a wrapper outside of the model.

    A wrapper that no module has registered (in a list) is found when a forward calls it.
    """

    def __init__(self) -> None:
        self._called: weakref.WeakKeyDictionary[Module, weakref.WeakSet[Module]] = (
            weakref.WeakKeyDictionary()
        )
        self._numbers: weakref.WeakKeyDictionary[Module, int] = weakref.WeakKeyDictionary()
        self._made = 0

    def of(self, module: Module) -> list[Module]:
        """Returns the parts of `module`, as it is now, and those that its forward has called."""
        found = _registered(module)
        return found + [part for part in self._called.get(module, ()) if part not in found]

    def registered(self, module: Module) -> frozenset[int]:
        """Returns which parts `module` holds now, as numbers that no other part ever has."""
        return frozenset(self._number(part) for part in _registered(module))

    @contextlib.contextmanager
    def noticed(self, module: Module, *, averages: bool) -> Iterator[set[Module]]:
        """Within it a forward of `module` runs; yields the parts that it is the first to call.

        Args:
            averages: whether the forward prepares its parts for a backward.
        """
        kept: list[tuple[Module, bool]] = []
        new: set[Module] = set()

        def enters(part: Module, _: Any) -> None:
            if not isinstance(part, DistributedDataParallel):
                return
            if part not in self.of(module):
                new.add(part)
                self._called.setdefault(module, weakref.WeakSet()).add(part)
                hold_back(part)

        def hold_back(part: Module) -> None:
            if not averages:
                kept.append((part, averages_gradients(part)))
                set_averages(part, False)

        for part in self.of(module):
            hold_back(part)
        handle = register_module_forward_pre_hook(enters)
        try:
            yield new
        finally:
            handle.remove()
            for part, was in reversed(kept):
                set_averages(part, was)

    def _number(self, part: Module) -> int:
        if part not in self._numbers:
            self._numbers[part] = self._made
            self._made += 1
        return self._numbers[part]


def averages_gradients(part: Module) -> bool:
    """Whether the next backward of a part is to average."""
    if isinstance(part, DistributedDataParallel):
        return bool(part.require_backward_grad_sync)
    return not _state(part)._no_sync


def set_averages(part: Module, averages: bool) -> None:
    """Says whether the forwards to come prepare a part for a backward that averages."""
    if isinstance(part, DistributedDataParallel):
        part.require_backward_grad_sync = averages
    else:
        _state(part)._no_sync = not averages


def wrapper(part: Module) -> DistributedDataParallel | None:
    """Returns the wrapper of a part; None before its first forward."""
    if isinstance(part, DistributedDataParallel):
        return part
    found: DistributedDataParallel | None = getattr(_state(part), "_ddp", None)
    return found


def wrappers(parts: Iterable[Module]) -> Iterator[DistributedDataParallel]:
    """Yields the wrappers that there are."""
    yield from filter(None, map(wrapper, parts))


def _registered(module: Module) -> list[Module]:
    if isinstance(module, DistributedDataParallel):
        return [module]
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return []
    replicated = getattr(sys.modules.get(_REPLICATE), "DDP", None)
    kinds = (DistributedDataParallel, *filter(None, [replicated]))
    return [part for part in module.modules() if isinstance(part, kinds)]


def _state(part: Module) -> Any:
    return sys.modules[_REPLICATE].replicate.state(part)
