"""What a page needs to draw curves: one script and one style sheet, without anything from outside.

uPlot 1.6.32 (MIT, static/uPlot.LICENSE) is shipped with us.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

STATIC = Path(__file__).with_name("static")


@cache
def curves_script() -> str:
    """Returns uPlot and `Curves`, which draws a document (`curve_document`) with it."""
    return _read("uPlot.iife.min.js") + "\n" + _read("curves.js")


@cache
def curves_css() -> str:
    return _read("uPlot.min.css") + "\n" + _read("curves.css")


def as_script_data(document: dict[str, Any]) -> str:
    """Returns JSON that can stand within a script element: nothing in it can close the element."""
    text = json.dumps(document, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _read(name: str) -> str:
    return (STATIC / name).read_text(encoding="utf-8")
