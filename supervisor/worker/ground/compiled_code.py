"""Whether the script uses torch.compile, found without importing it."""

from __future__ import annotations

import sys


def has_compiled() -> bool:
    """Whether anything was compiled in this process."""
    utils = sys.modules.get("torch._dynamo.utils")
    return utils is not None and bool(utils.counters["frames"])
