"""The patches by which a replay knows what ranks told each other, and what all of them do alike."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any, Protocol

import torch

from supervisor.storage.steps.tape import EntryKind
from supervisor.worker.core.sides import Sides
from supervisor.worker.ground.error_barrier import Breaker
from supervisor.worker.group.exchanges import Exchanges
from supervisor.worker.group.first_averages import FirstAverages
from supervisor.worker.interception.patches_messages import counted
from supervisor.worker.interception.training_hooks import Seen
from supervisor.worker.recording.script_reads import ScriptReads

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
_NOBODY = -1
_ALL_HAVE = frozenset({"all_gather_object", "broadcast_object_list"})
"""Behind these all ranks have the same objects."""


class AllAlike(Protocol):
    """Within it collectives are sent in a replay, too."""

    silenced: int

    def really(self) -> contextlib.AbstractContextManager[None]: ...


def watch_collectives(
    session: Seen,
    reads: Sides[ScriptReads],
    alike: AllAlike | None,
    exchanges: Exchanges,
    part: Breaker,
) -> None:
    """Patches torch.distributed for the rest of this process's life. Called once.

    Args:
        reads: what ranks tell each other is what the script reads.
        alike: of the replay under way; None for none.
        exchanges: counts what carries objects.
        part: keeps its errors from the script.
    """
    if not torch.distributed.is_available():
        return
    from torch.distributed import distributed_c10d

    for namespace in _NAMESPACES:  # else a replay, which looks at them, is the first to make them
        getattr(torch.ops, namespace)
    for name, into in _RECEIVING.items():
        original = getattr(distributed_c10d, name)
        count = functools.partial(counted, part=part, count=exchanges.tells)
        replacement = _told(session, reads, original, into, name in _ALL_HAVE, count)
        setattr(distributed_c10d, name, replacement)
        setattr(torch.distributed, name, replacement)
    _patch_receipt_from_any(session, reads, alike)


def _told(
    session: Seen,
    reads: Sides[ScriptReads],
    original: Callable[..., Any],
    into: str | None,
    all_have: bool,
    count: Callable[..., tuple[Any, Any]],
) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def exchange(*args: Any, **kwargs: Any) -> Any:
        if not session.interception.is_ours():
            return original(*args, **kwargs)
        call = functools.partial(original, *args, **kwargs)
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError:
            return call()  # torch says what is wrong
        place = given.get(into) if into else None
        if sys._getframe(1).f_globals.get("__name__", "").startswith(_JOINT):
            return reads.now.plans(call)
        return reads.now.objects(
            place, lambda: count(call, given.get("group"))[1], all_have=all_have
        )

    return exchange


def _patch_receipt_from_any(
    session: Seen, reads: Sides[ScriptReads], alike: AllAlike | None
) -> None:
    """Whose message it was is a value that the script reads."""
    from torch.distributed import distributed_c10d

    original = distributed_c10d.recv

    @functools.wraps(original)
    def recv(
        tensor: Any, src: Any = None, group: Any = None, tag: int = 0, group_src: Any = None
    ) -> Any:
        call = functools.partial(original, tensor, src, group, tag, group_src)
        is_known = src is not None or group_src is not None
        if is_known or not session.interception.is_ours():
            return call()

        received: list[int] = []

        def receive() -> int:
            silenced = 0 if alike is None else alike.silenced
            try:
                received.append(call())
            except RuntimeError:
                if alike is None or alike.silenced == silenced:
                    raise
                received.append(_NOBODY)
            return received[-1]

        source = reads.now.read(EntryKind.INT, receive)
        return source if received else (receive(), source)[1]

    distributed_c10d.recv = recv
    torch.distributed.recv = recv


def watch_wrappers(alike: AllAlike | None, averages: FirstAverages, part: Breaker) -> None:
    """A wrapper that is made in the middle of a training compares the models of all ranks.

    Args:
        alike, part: see `watch_collectives`.
        averages: told of each wrapper.
    """
    if not torch.distributed.is_available():
        return
    from torch.nn.parallel import DistributedDataParallel

    original = DistributedDataParallel.__init__

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        with contextlib.nullcontext() if alike is None else alike.really():
            original(self, *args, **kwargs)
        with part:
            averages.made(self)

    DistributedDataParallel.__init__ = __init__  # type: ignore[method-assign]
