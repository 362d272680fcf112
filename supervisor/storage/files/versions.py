"""The versions that a run or checkpoint was made with, found without importing torch."""

from __future__ import annotations

import functools
import platform
import re
from collections.abc import Mapping

from supervisor import version

NEWEST_TRIED = {"python": (3, 13), "torch": (2, 14)}
"""The newest that the whole suite ran with (docs/versions.md)."""
_NAMES = {"python": "Python", "torch": "torch"}


@functools.lru_cache(maxsize=1)
def current_versions() -> dict[str, str]:
    """Returns the versions of Python, torch and this package; "none" for what is not installed."""
    from importlib import metadata  # late: whoever only reads a run does without, which is 18 ms

    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        torch = "none"
    return {
        "python": platform.python_version(),
        "torch": torch,
        "supervisor": version.__version__,
    }


def untried_versions(versions: Mapping[str, str]) -> str:
    """Returns a line about what is newer than any that was tried; empty if nothing is.

    Args:
        versions: see `current_versions`.
    """
    newer = [
        f"{_NAMES[name]} {versions[name]} (tried up to {'.'.join(map(str, newest))})"
        for name, newest in NEWEST_TRIED.items()
        if tuple(map(int, re.findall(r"\d+", versions[name])[:2])) > newest
    ]
    if not newer:
        return ""
    return (
        f"not tried with {' and '.join(newer)}: a resume is called exact only if looks into this "
        "interpreter find what is known to be there"
    )
