"""The patches by which a replay knows what ranks told each other, and what all of them do alike."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any, Protocol

import torch

from supervisor.worker.interception.instrument import Seen

_RECEIVING = {
    "all_gather_object": "object_list",
    "gather_object": "object_gather_list",
    "broadcast_object_list": "object_list",
    "scatter_object_list": "scatter_object_output_list",
    "recv_object_list": "object_list",
    "send_object_list": None,
}
"""Functions that exchange objects of Python, and the list into which they put what comes."""

_NAMESPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor")
_JOINT = "torch.distributed.checkpoint."
"""Its modules write files of all ranks together, in a replay as well: what they exchange describes
these files, and is of no use to a script."""
_ALL_HAVE = frozenset({"all_gather_object", "broadcast_object_list"})
"""Behind these all ranks have the same objects."""


class AllAlike(Protocol):
    """Within it collectives are sent in a replay, too."""

    def really(self) -> contextlib.AbstractContextManager[None]: ...


def watch_collectives(session: Seen, alike: AllAlike | None) -> None:
    """Patches torch.distributed for the rest of this process's life. Called once.

    Args:
        alike: of the replay under way; None for none.
    """
    if not torch.distributed.is_available():
        return
    from torch.distributed import distributed_c10d

    for namespace in _NAMESPACES:  # else a replay, which looks at them, is the first to make them
        getattr(torch.ops, namespace)
    for name, into in _RECEIVING.items():
        replacement = _told(session, getattr(distributed_c10d, name), into, name in _ALL_HAVE)
        setattr(distributed_c10d, name, replacement)
        setattr(torch.distributed, name, replacement)
    if alike is not None:
        _patch_wrapping(alike)


def _told(
    session: Seen, original: Callable[..., Any], into: str | None, all_have: bool
) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def exchange(*args: Any, **kwargs: Any) -> Any:
        if not session.interception.is_ours():
            return original(*args, **kwargs)
        place = signature.bind(*args, **kwargs).arguments.get(into) if into else None
        call = functools.partial(original, *args, **kwargs)
        if sys._getframe(1).f_globals.get("__name__", "").startswith(_JOINT):
            return session.hooks.plans(call)
        return session.hooks.objects(place, call, all_have=all_have)

    return exchange


def _patch_wrapping(alike: AllAlike) -> None:
    """A wrapper that is made in the middle of a training compares the models of all ranks."""
    from torch.nn.parallel import DistributedDataParallel

    original = DistributedDataParallel.__init__

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        with alike.really():
            original(self, *args, **kwargs)

    DistributedDataParallel.__init__ = __init__  # type: ignore[method-assign]
