"""The patches by which collectives pass by here, in the groups of the script and under them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from supervisor.unwarned import unwarned
from supervisor.worker.healing import functional
from supervisor.worker.healing.links import Gloo
from supervisor.worker.healing.operations import KEPT, KEY, NAMESPACE, OTHERS, Call


def route_collectives(handle: Callable[[Call], Any]) -> bool:
    """Has each operation of ``c10d`` made by `handle`, for the rest of this process's life.

    The groups that the script makes connect only where they are used by something else from here
    on, so they are made without the others. Called once, before the first of them.

    Returns:
        Whether this torch can do that; else nothing is changed.
    """
    c10d: Any = getattr(torch.distributed, "distributed_c10d", None)
    gloo: Any = getattr(c10d, "ProcessGroupGloo", None)
    if gloo is None or not hasattr(torch._C, "_AutoDispatchBelowAutograd"):
        return False

    class Unconnected(type):
        def __call__(
            cls, store: Any, rank: int, size: int, timeout: Any = None, **more: Any
        ) -> Any:
            if any(more.values()):  # torch's own way to mend a group: 2.14's `enable_reconfigure`
                return gloo(store, rank, size, timeout=timeout, **more)
            options = gloo._Options()
            options._devices = [gloo.create_device(hostname="127.0.0.1", lazy_init=True)]
            if timeout is not None:
                options._timeout = timeout
            return gloo(store, rank, size, options)

        def __instancecheck__(cls, thing: object) -> bool:
            return isinstance(thing, gloo)

        def __getattr__(cls, name: str) -> Any:
            return getattr(gloo, name)

    Gloo.own = gloo
    c10d.ProcessGroupGloo = Unconnected("ProcessGroupGloo", (), {})

    def override() -> None:
        for name in (*KEPT, *OTHERS):
            made = lambda *given, name=name: handle(Call(name, given))  # noqa: E731
            _LIBRARY.impl(name, made, KEY, allow_override=True)
        for name, made in functional.operations().items():
            _FUNCTIONAL.impl(name, made, functional.KEY, allow_override=True)

    unwarned(override, UserWarning)  # that it overrides
    return True


_FUNCTIONAL: Any = torch.library.Library(functional.NAMESPACE, "IMPL")
_LIBRARY: Any = torch.library.Library(NAMESPACE, "IMPL")
"""What it holds is gone when it is freed."""
