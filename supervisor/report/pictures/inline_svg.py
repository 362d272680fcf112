"""A picture as it stands within a page."""

from __future__ import annotations

import re


def inline_svg(svg: str) -> str:
    """Returns a file's SVG without prolog, metadata and fixed size; a page scales it."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    opening, rest = svg.split(">", 1)
    return re.sub(r'\s(?:xmlns(?::\w+)?|width|height)="[^"]*"', "", opening) + ">" + rest
