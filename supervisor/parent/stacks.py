"""Reads the stacks that `faulthandler` wrote about a hung worker."""

from __future__ import annotations

import re

_HEADER = re.compile(r"^(Current thread|Thread) 0x[0-9a-f]+.*:$")
_FRAME = re.compile(r'^\s+File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)$')


def main_thread_frames(text: str, limit: int = 5) -> tuple[str, ...]:
    """Returns the innermost frames of the main thread in the last dump of `text`, innermost first.

    `faulthandler` lists threads newest first, so the main thread is the last block of a dump.
    Each frame reads ``function (file:line)``. Empty when nothing was dumped.
    """
    frames: list[str] = []
    for line in text.splitlines():
        if _HEADER.match(line):
            frames = []
            continue
        match = _FRAME.match(line)
        if match:
            frames.append(f"{match['function']} ({match['file']}:{match['line']})")
    return tuple(frames[:limit])
