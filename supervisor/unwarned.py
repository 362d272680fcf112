"""Calls for which Python has a warning that the script has not caused."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")


def unwarned(call: Callable[[], Result], category: type[Warning] = DeprecationWarning) -> Result:
    """Returns what `call` does, without a warning of this category by what it calls.

    Not by `catch_warnings`: after that Python shows again what it has shown the script once.
    """
    filters: Any = warnings.filters
    quiet = ("ignore", None, category, None, 0)
    filters.insert(0, quiet)
    try:
        return call()
    finally:
        filters.remove(quiet)
