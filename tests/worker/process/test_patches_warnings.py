"""A warning names the line of the script that it is about, as without us."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = str(Path(__file__).parents[3])
OURS = (  # a wrapper as those of `patches_reads.py`: code of a file in the package, around C code
    "def ours(call, *args):\n    return inner(call, *args)\n"
    "def inner(call, *args):\n    return call(*args)\n"
)
WITH_US = f"""
import sys
sys.path.insert(0, {ROOT!r})
from supervisor.worker.process.patches_warnings import watch_warnings
watch_warnings()
space = {{"__name__": "supervisor.made_up"}}
exec(compile({OURS!r}, {ROOT + "/supervisor/made_up.py"!r}, "exec"), space)
ours = space["ours"]
"""
WITHOUT = """
def ours(call, *args):
    call(*args[:-1], stacklevel=args[-1] + 1) if args else call(stacklevel=2)
"""
SCRIPT = """
import _warnings, warnings

def library(stacklevel=1):
    warnings.warn("of a library", FutureWarning, stacklevel=stacklevel + 1)

def twice(text, category=UserWarning):
    ours(_warnings.warn, text, category, 1)  # first
    ours(_warnings.warn, text, category, 1)  # second
"""
BODIES = {
    "each line of the script is told": "twice('a')",
    "a place is told once": "for _ in range(3): twice('a')",
    "of a category that only the script is told": "twice('a', DeprecationWarning)",
    "by a library's stacklevel": "ours(library)  # here",
    "a filter of the script's module": (
        "warnings.filterwarnings('ignore', module='__main__'); twice('a')"
    ),
    "a filter by its text": "warnings.filterwarnings('ignore', 'a'); twice('a')",
    "an error": "warnings.simplefilter('error')\ntry: twice('a')\nexcept UserWarning: print('# 1')",
    "caught": (
        "with warnings.catch_warnings(record=True) as got:\n    warnings.simplefilter('always')\n"
        "    twice('a')\nprint(['#', *((str(w.message), w.filename == __file__) for w in got)])"
    ),
    "not ours": "warnings.warn('plain')  # here",
}


def told(folder: Path, *parts: str) -> list[str]:
    """Returns the script's lines that its warnings name, and what it has printed."""
    script = folder / "script.py"
    script.write_text("\n".join(parts))
    done = subprocess.run(
        [sys.executable, "-S", str(script)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "made_up" not in done.stderr
    return [line.strip() for line in (done.stdout + done.stderr).splitlines() if "#" in line]


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_what_is_told_is_what_python_tells_without_us(tmp_path: Path, body: str) -> None:
    assert told(tmp_path, WITH_US, SCRIPT, body) == told(tmp_path, WITHOUT, SCRIPT, body)
