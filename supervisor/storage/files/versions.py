"""The versions that a run or checkpoint was made with, found without importing torch."""

from __future__ import annotations

import functools
import platform

from supervisor import version


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
