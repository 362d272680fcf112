"""What has come of work that the script did not wait for: it may look at it steps later."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Iterator
from typing import Any

import torch

from supervisor.training_state.census.place import Place, write_attribute
from supervisor.training_state.exchange_handles import came_of

_RESULT = "_result"


def of_handle(path: str, handle: Any) -> Iterator[Place]:
    """What an exchange between ranks has brought, or another task of torch; nothing before that.

    An exchange tells of its tensors alone: not every backend lists them.
    """
    value = came_of(handle)
    if isinstance(handle, torch._C.Future):
        if value is not None:
            yield Place(f"{path}.value", value)
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield Place(f"{path}.value[{number}]", item)


def of_future(path: str, future: concurrent.futures.Future[Any]) -> Iterator[Place]:
    """What a thread or a process has returned; nothing before that."""
    result = getattr(future, _RESULT, None)
    if result is not None:
        yield Place(f"{path}.value", result, future, _RESULT, write_attribute)
