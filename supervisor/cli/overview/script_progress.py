"""The length of a script's own loop, if the script tells it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from supervisor.storage.files.private_files import open_private

TOTAL = "total_steps"
"""The observed name that tells it: ``supervisor.observe(total_steps=10_000)``."""

_BAR = re.compile(r"(\d+)/(\d+) \[[\d:]+<([\d:]+),")
"""As tqdm draws it, and with it Lightning, Transformers and fastai."""
_TAIL = 4096


def steps_left(observed: Mapping[str, float], step: int) -> int | None:
    """Returns the number of steps left, None if the script does not tell its length."""
    total = observed.get(TOTAL, 0.0)
    return max(0, int(total) - step - 1) if 0 < total < 2**53 else None


def own_bar(log: Path) -> str:
    """Returns the state of the script's newest progress bar; empty without one."""
    try:
        with open_private(log, "rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _TAIL))
            found = _BAR.findall(file.read(_TAIL).decode(errors="replace"))
    except OSError:
        return ""
    return f"{found[-1][0]} of {found[-1][1]}, {found[-1][2]} left" if found else ""
