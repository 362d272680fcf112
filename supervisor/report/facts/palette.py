"""The colours of pictures and curves, in a light and in a dark theme.

Pictures are drawn in the light colours. In a page each is a variable that follows the reader's
theme.
"""

from __future__ import annotations

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
