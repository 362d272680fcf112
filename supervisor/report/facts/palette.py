"""The colours of the pictures, and how they follow a reader's light or dark theme.

Pictures are drawn in the light colours. In a page each colour becomes a CSS variable, so that one
inline SVG serves both themes; saved files keep the light ones.
"""

from __future__ import annotations

import re

INK = "#1f2430"
MUTED = "#6b7281"
GRID = "#e4e7ec"
PAPER = "#fefefe"
LOSS = "#2f6fdb"
GRADIENT = "#b7791f"
RATE = "#2c8a5b"
SCALE = "#7a4fd0"
RISK = "#c8393b"
LOST = "#b4bcc9"
TREATMENT = "#c06a10"
ROLLBACK = "#9a3fb5"
RESTART = "#d1344f"
GOOD = "#2c8a5c"

VARIABLES = {
    INK: "ink",
    MUTED: "muted",
    GRID: "grid",
    PAPER: "paper",
    LOSS: "loss",
    GRADIENT: "gradient",
    RATE: "rate",
    SCALE: "scale",
    RISK: "risk",
    LOST: "lost",
    TREATMENT: "treatment",
    ROLLBACK: "rollback",
    RESTART: "restart",
    GOOD: "good",
}


def themed(svg: str) -> str:
    """Returns what can stand inside a page: no prolog, no metadata, colours as CSS variables."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\sxmlns(?::\w+)?="[^"]*"', "", svg)
    # A page scales the picture; the size in points would fix it.
    svg = re.sub(r'(<svg[^>]*?)\swidth="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?)\sheight="[^"]*"', r"\1", svg, count=1)
    for colour, name in VARIABLES.items():
        svg = re.sub(re.escape(colour), f"var(--plot-{name})", svg, flags=re.IGNORECASE)
    return svg
