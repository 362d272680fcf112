"""The clock from which the system takes file times."""

from __future__ import annotations

import sys
import time

_COARSE = 5 if sys.platform == "linux" else time.CLOCK_REALTIME  # CLOCK_REALTIME_COARSE


def file_time() -> float:
    """Returns the time that a local file written now would get, in unix seconds.

    It is some milliseconds behind `time.time`.
    """
    return time.clock_gettime(_COARSE)
