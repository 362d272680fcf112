"""What a script that forks is told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, sys, threading
sys.path.insert(0, {root!r})
from supervisor.worker.process.patches_process import watch_fork

watch_fork()
for name in {names}:
    threading.Thread(target=threading.Event().wait, name=name, daemon=True).start()
pid = os.fork()  # here
if pid == 0:
    os._exit(0)
os.waitpid(pid, 0)
os._exit(0)
"""
ROOT = str(Path(__file__).parents[3])


def told(folder: Path, *names: str, warn: str = "default") -> str:
    """Returns what a script writes to standard error that forks beside threads of these names."""
    script = folder / "script.py"
    script.write_text(SCRIPT.format(root=ROOT, names=names))
    line = [sys.executable, "-W", warn, str(script)]
    return subprocess.run(line, capture_output=True, text=True, check=False).stderr


@pytest.mark.parametrize("warn", ["default", "error"])
def test_threads_of_ours_are_none_that_a_fork_warns_of(tmp_path: Path, warn: str) -> None:
    assert told(tmp_path, "supervisor-checkpoints", warn=warn) == ""


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python warns from 3.12 on")
def test_the_scripts_own_threads_are_told_as_python_tells_them(tmp_path: Path) -> None:
    found = told(tmp_path, "theirs", "supervisor-checkpoints").splitlines()

    assert "DeprecationWarning: This process" in found[0]
    assert found[0].startswith(f"{tmp_path / 'script.py'}:")
    assert found[1].strip() == "pid = os.fork()  # here"
