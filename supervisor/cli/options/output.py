"""What commands print: one JSON document, and sizes and times as people read them."""

from __future__ import annotations

import json
import math
from typing import Any

from supervisor.records import plain


def print_json(value: Any) -> None:
    """Prints `value` (records included) as the one document on standard output.

    NaN and infinities, which JSON does not have, become the strings "nan", "inf" and "-inf".
    """
    print(json.dumps(_strict(plain(value)), indent=2, allow_nan=False))


def byte_size(count: int) -> str:
    """Returns a size as people read it: ``0 B``, ``12.3 MiB``."""
    size, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024.0 and len(units) > 1:
        size /= 1024.0
        units.pop(0)
    return f"{size:.3g} {units[0]}" if size < 1000 else f"{size:.0f} {units[0]}"


def time_span(seconds: float) -> str:
    """Returns a time as people say it: ``42 s``, ``7 min 5 s``, ``3 h 12 min``, ``2 d 5 h``."""
    whole = max(0, int(seconds)) if seconds < 1e12 else 0
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def _strict(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_strict(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
