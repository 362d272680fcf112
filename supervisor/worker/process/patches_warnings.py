"""The patch by which a warning names the script's line, where a function of ours stands in between.

Torch's C code warns at the nearest frame of Python, and Python's `stacklevel` counts frames: where
a function of ours has taken the place of torch's, both name a file of ours. Such a warning is given
once more at the place where it would have been without us: the script's own filters decide there,
and so does Python's rule that each place is told once.
"""

from __future__ import annotations

import functools
import os
import sys
import warnings
from pathlib import Path
from types import FrameType
from typing import Any

_OURS = str(Path(__file__).parents[2]) + os.sep
_REGISTRY = "__warningregistry__"


def watch_warnings() -> None:
    """Patches `warnings` for the rest of this process's life."""
    original: Any = vars(warnings)["_showwarnmsg"]

    @functools.wraps(original)
    def show(message: Any) -> Any:
        ours = place = _place_of(message)
        while place is not None and _is_ours(place.f_code.co_filename):
            place = place.f_back
        if ours is None or place is None:
            return original(message)
        ours.f_globals.pop(_REGISTRY, None)  # another line of the script is another place
        warnings.warn_explicit(
            message.message,
            message.category,
            place.f_code.co_filename,
            place.f_lineno,
            module=place.f_globals.get("__name__", "<unknown>"),
            registry=place.f_globals.setdefault(_REGISTRY, {}),
            source=message.source,
        )
        return None

    vars(warnings)["_showwarnmsg"] = show
    # Python ignores some categories everywhere but in the script: not before we know the place.
    warnings.filterwarnings("always", module=r"supervisor\.")


def _place_of(message: Any) -> FrameType | None:
    """The frame of ours that a warning names; None where it names no file of ours."""
    if not _is_ours(str(message.filename)):
        return None
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename != message.filename:
        frame = frame.f_back
    return frame


def _is_ours(filename: str) -> bool:
    return filename.startswith(_OURS)
