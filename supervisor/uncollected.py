"""No garbage is collected while thousands of objects are made that are kept."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Around a walk that keeps what it finds. Each place and each node is a new object; so many of
    them set off collections of everything, which took longer than the walk."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
