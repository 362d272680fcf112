"""Supervision begins when the script imports torch, in whatever way it comes to that."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ARRIVAL = """
import sys
from supervisor.worker.core.module_arrival import ModuleArrival

ModuleArrival("torch", lambda: print("arrived with", sys.modules["torch"].answer)).install()
"""
WARM = """
import torch
from supervisor.worker.ready_torch import ReadyTorch

ReadyTorch(lambda: print("taken")).install()
"""


def _said(folder: Path, text: str) -> list[str]:
    package = folder / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("answer = 42\nprint('executed')")
    (package / "nn.py").write_text("")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), os.getcwd()])}
    done = subprocess.run(
        [sys.executable, "-c", text], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    "statement",
    ["import torch", "import torch.nn", "from torch import nn", "__import__('torch')"],
)
def test_it_is_told_once_when_torch_is_complete(tmp_path: Path, statement: str) -> None:
    said = _said(tmp_path, f"{ARRIVAL}\n{statement}\nimport torch\nprint('next')")

    assert said == ["executed", "arrived with 42", "next"]


def test_asking_whether_torch_is_there_is_no_import(tmp_path: Path) -> None:
    ask = "import importlib.util; print(importlib.util.find_spec('torch').name)"

    said = _said(tmp_path, f"{ARRIVAL}\n{ask}\n{ask}\nimport torch")

    assert said == ["torch", "torch", "executed", "arrived with 42"]


def test_a_torch_that_is_ready_arrives_when_the_script_imports_it(tmp_path: Path) -> None:
    begin = "before = torch; del torch; print('script')"
    end = "import torch.nn; print(torch is before, torch.__spec__ is sys.modules['torch'].__spec__)"

    said = _said(tmp_path, f"{WARM}\n{ARRIVAL}\n{begin}\n{end}\nprint(torch.__spec__.origin)")

    assert said[:4] == ["executed", "script", "taken", "arrived with 42"]
    assert said[4] == "True True"
    assert said[5].endswith("__init__.py")
