"""Programs whose risky lines say so: ``# expect: rule``, or ``# expect below: rule, rule``."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent

from supervisor.source_check.check import check_source

_EXPECTATION = re.compile(r"#\s*expect( below)?:\s*([\w\-, ]+)")

IMPORTS = """\
import torch
import torch.nn.functional as F
from torch import nn
from torch.amp import GradScaler, autocast
"""


def expected(text: str) -> set[tuple[int, str]]:
    """Returns line and rule of every expectation written into ``text``."""
    found: set[tuple[int, str]] = set()
    for number, line in enumerate(text.splitlines(), start=1):
        match = _EXPECTATION.search(line)
        if match is not None:
            line_of_finding = number + bool(match[1])
            found |= {(line_of_finding, rule) for rule in re.split(r",\s*", match[2].strip())}
    return found


def program(body: str) -> str:
    """Returns a whole file for ``body``, with the usual imports."""
    return IMPORTS + dedent(body)


def found_in(folder: Path, text: str) -> set[tuple[int, str]]:
    """Returns line and rule of what a check of ``text`` finds."""
    path = folder / "train.py"
    path.write_text(text, encoding="utf-8")
    return {(finding.line, finding.rule) for finding in check_source(path).findings}
