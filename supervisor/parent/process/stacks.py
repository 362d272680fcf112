"""Reads the stacks that `faulthandler` wrote about a hung worker."""

from __future__ import annotations

import os
import re
from pathlib import Path

_HEADER = re.compile(r"^(Current thread|Thread) 0x[0-9a-f]+.*:$")
_FRAME = re.compile(r'^\s+File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)$')


_OURS = str(Path(__file__).parents[2]) + os.sep


def main_thread_frames(text: str, limit: int = 5, ours: str = _OURS) -> tuple[str, ...]:
    """Returns the main thread's frames in the last dump of `text`, innermost first.

    `faulthandler` lists threads newest first, so the main thread is the last block of a dump.
    Each frame reads ``function (file:line)``. Frames in the folder `ours`, which start the user's
    script and pass its calls on, are left out unless there are no others. Empty when nothing was
    dumped.
    """
    frames: list[tuple[str, str]] = []
    for line in text.splitlines():
        if _HEADER.match(line):
            frames = []
            continue
        match = _FRAME.match(line)
        if match:
            shown = f"{match['function']} ({match['file']}:{match['line']})"
            frames.append((match["file"], shown))
    others = [frame for frame in frames if not frame[0].startswith((ours, "<frozen "))]
    return tuple(shown for _, shown in (others or frames)[:limit])
