"""How values are written in a report. Pure; the templates use these as filters."""

from __future__ import annotations

import math
import re
from typing import Any

from supervisor.report.facts.figures import duration, number, show

MISSING = "–"
"""What stands where nothing is known."""


def figure(value: Any) -> str:
    """Returns a number in a few digits."""
    return MISSING if value is None else show(value)


def time_taken(value: Any) -> str:
    """Returns a number of seconds in seconds, minutes or hours."""
    return duration(number(value))


def in_words(value: Any) -> str:
    """Returns a code without its underscores."""
    return str(value).replace("_", " ")


def percent(value: Any) -> str:
    """Returns a share in per cent."""
    share = 100 * number(value)
    if not math.isfinite(share):
        return MISSING
    return f"{share:.0f} %" if share >= 10 or share == 0 else f"{share:.1f} %"


def error_percent(value: Any) -> str:
    """As `percent`, for errors: small ones with two digits, ``infinite`` for an infinite one."""
    share = 100 * number(value)
    if math.isinf(share):
        return "infinite"
    return f"{share:.2g} %" if abs(share) < 10 else percent(value)


def clocktime(value: Any) -> str:
    """Returns ``03:12:07`` of an ISO 8601 time; the text itself if it is none."""
    found = re.search(r"T(\d\d:\d\d:\d\d)", str(value))
    return found.group(1) if found else str(value)
