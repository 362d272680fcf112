"""Python 3.10's `pathlib` keeps the functions of `os` and `io` that it found at its import."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any


def patch_pathlib(name: str, call: Callable[..., Any]) -> None:
    """Has paths call what was put into `os` or `io` under this name; later versions look there."""
    accessor = getattr(pathlib, "_normal_accessor", None)
    if accessor is not None and hasattr(accessor, name):
        setattr(accessor, name, call)
