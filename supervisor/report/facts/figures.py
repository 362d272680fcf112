"""Numbers and times, as a report writes them.

Pictures are drawn in the light colours. In a page each is a variable that follows the reader's
theme.
"""

from __future__ import annotations

import math
from datetime import datetime, timezone
from typing import Any

from supervisor.records import NAN


def number(value: Any) -> float:
    """Returns `value` as a float; NaN when it is none."""
    if isinstance(value, bool) or value is None:
        return NAN
    try:
        return float(value)
    except (TypeError, ValueError):
        return NAN


def integer(value: Any) -> int | None:
    """Returns `value` as an int; None when it is none."""
    as_float = number(value)
    return int(as_float) if math.isfinite(as_float) else None


def moment(text: Any) -> float:
    """Returns an ISO 8601 time (or seconds since 1970) as seconds since 1970; NaN if it is none."""
    if isinstance(text, (int, float)):
        return number(text)
    try:
        parsed = datetime.fromisoformat(str(text).replace("Z", "+00:00"))
    except ValueError:
        return NAN
    if parsed.tzinfo is None:
        parsed = parsed.replace(tzinfo=timezone.utc)
    return parsed.timestamp()


def clock(time_s: float) -> str:
    """Returns ``2026-01-31 03:12:07 UTC`` of seconds since 1970; empty if it is none."""
    try:
        return datetime.fromtimestamp(time_s, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):  # no moment that a calendar has
        return ""


def show(value: Any, digits: int = 4) -> str:
    """Returns a number for a sentence: ``2.345``, ``1.2e+07``, ``NaN``, ``infinite``, ``–``."""
    if value is None:
        return "–"
    as_float = number(value)
    if math.isnan(as_float):
        return "NaN"
    if math.isinf(as_float):
        return "infinite" if as_float > 0 else "-infinite"
    if as_float == int(as_float) and abs(as_float) < 1e6:
        return str(int(as_float))
    return f"{as_float:.{digits}g}"


def lowered(sentence: str) -> str:
    """Returns `sentence` for the middle of another one."""
    return sentence[:1].lower() + sentence[1:]


def duration(seconds: float) -> str:
    """Returns ``1.5 ms``, ``0.4 s``, ``12 s``, ``3 min 5 s``, ``2 h 10 min`` or ``2 d 5 h``; ``–``
    for NaN."""
    if not math.isfinite(seconds):
        return "–"
    if seconds == 0:
        return "0 s"
    if 0 < seconds < 0.1:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24} d {hours % 24} h"
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def count(amount: int, noun: str) -> str:
    """Returns ``1 restart``, ``2 restarts``, ``no restart``."""
    if amount == 0:
        return f"no {noun}"
    return f"{amount} {noun}" if amount == 1 else f"{amount} {noun}s"


INK = "#1f2430"
MUTED = "#6b7281"
GRID = "#e4e7ec"
LOSS = "#2f6fdb"
GRADIENT = "#b7791f"
RATE = GOOD = "#2c8a5b"
SCALE = "#7a4fd0"
RISK = "#c8393b"
LOST = "#b4bcc9"
TREATMENT = "#c06a10"
ROLLBACK = "#9a3fb5"
RESTART = "#d1344f"

DARK = {
    INK: ("ink", "#e4e7ed"),
    MUTED: ("muted", "#9aa3b2"),
    GRID: ("grid", "#303743"),
    LOSS: ("loss", "#6fa0f2"),
    GRADIENT: ("gradient", "#dca554"),
    RATE: ("rate", "#5fc794"),
    SCALE: ("scale", "#ad8cf0"),
    RISK: ("risk", "#ef7577"),
    LOST: ("lost", "#566072"),
    TREATMENT: ("treatment", "#e79a4a"),
    ROLLBACK: ("rollback", "#cf86e4"),
    RESTART: ("restart", "#f2778d"),
}
"""Of each light colour: its variable (``--plot-ink``) and its value in a dark theme."""


def page_css() -> str:
    """Returns the variables for both themes."""
    light = " ".join(f"--plot-{name}: {colour};" for colour, (name, _) in DARK.items())
    dark = " ".join(f"--plot-{name}: {value};" for name, value in DARK.values())
    return f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"
