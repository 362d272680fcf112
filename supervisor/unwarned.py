"""Calls for which Python has a warning that the script has not caused."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, TypeVar

_QUIET = ("ignore", None, DeprecationWarning, None, 0)

Result = TypeVar("Result")


def unwarned(call: Callable[[], Result]) -> Result:
    """Returns what `call` does, without a `DeprecationWarning` of what it calls.

    Not by `catch_warnings`: after that Python shows again what it has shown the script once.
    """
    filters: Any = warnings.filters
    filters.insert(0, _QUIET)
    try:
        return call()
    finally:
        filters.remove(_QUIET)
