"""The patch by which worker processes that are started anew hash texts as this one does."""

from __future__ import annotations

import functools
import os
from multiprocessing import util
from typing import Any

_SALT = "PYTHONHASHSEED"


def hand_on_salt(salt: str) -> None:
    """Gives the salt to what `multiprocessing` starts by spawn or forkserver; called once.

    A loader's worker that goes through a set of texts must find the order that its like had in the
    attempt before. The script's own environment does not have the variable.
    """
    original = util.spawnv_passfds

    @functools.wraps(original)
    def spawnv_passfds(*args: Any) -> Any:
        if _SALT in os.environ:
            return original(*args)
        os.putenv(_SALT, salt)  # what is started inherits it; `os.environ` does not show it
        try:
            return original(*args)
        finally:
            os.unsetenv(_SALT)

    util.spawnv_passfds = spawnv_passfds  # type: ignore[assignment]
