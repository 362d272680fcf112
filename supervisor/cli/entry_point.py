"""Finds what a command calls, when it is called."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from supervisor.errors import UsageError


def entry_point(command: str, module: str, name: str) -> Any:
    """Returns attribute `name` of `module`, imported now.

    Raises:
        UsageError: this version does not have it.
    """
    try:
        known = find_spec(module) is not None
    except ModuleNotFoundError:
        known = False
    found = getattr(import_module(module), name, None) if known else None
    if found is None:
        raise UsageError(
            f"{command}: not in this version yet: `supervisor --help` shows the other commands"
        )
    return found
