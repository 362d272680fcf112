"""The clock that the system takes the times of files from."""

from __future__ import annotations

import sys
import time

_COARSE = 5 if sys.platform == "linux" else time.CLOCK_REALTIME  # CLOCK_REALTIME_COARSE


def file_time() -> float:
    """Returns the time that a file would get now, on a disk of this machine; unix seconds.

    It is some milliseconds behind `time.time`, which would make a file that is written next look
    older than it is.
    """
    return time.clock_gettime(_COARSE)
