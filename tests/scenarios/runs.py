"""Starts real supervised runs, and reads what they left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests.scenarios.ready_python import ReadyPython

TIMEOUT_S = 300.0
QUICK = ("restart.backoff_s=0.05", "report.enabled=false")
_READY = ReadyPython()
_READY_PARENT = Path(__file__).with_name("ready_parent.py")

AT_UPDATES = sys.version_info < (3, 11)
"""Python 3.10 does not tell where in a line a call stands: where something else might be computed
before it, a step's boundary is at the end of its update, not in the next forward."""

all_are_executed = False
"""With ``--all``: every worker is a process of its own from its interpreter's start on."""


@dataclass(frozen=True)
class Ended:
    """A run that has ended."""

    folder: Path
    returncode: int
    stdout: str
    stderr: str

    @property
    def run_dir(self) -> Path:
        return self.folder / "run"

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        lines = (self.run_dir / "events.jsonl").read_text().splitlines()
        found = [json.loads(line) for line in lines]
        return [event for event in found if kind is None or event["kind"] == kind]

    def found(self, what: str) -> list[dict[str, Any]]:
        """Events of kind `state_found` about `what`."""
        return [event for event in self.events("state_found") if event["found"] == what]

    def actions(self) -> list[str]:
        return [e["name"] for e in self.events("action") if e["outcome"] == "applied"]

    def result(self, name: str = "out.pt") -> Any:
        return torch.load(self.folder / name, weights_only=True)


def plain(
    folder: Path,
    text: str,
    arguments: Sequence[str] = ("out.pt",),
    *,
    fed: str | None = None,
) -> Ended:
    """Runs a script with plain python, in a process started for it."""
    return _run(folder, text, [sys.executable, "script.py", *arguments], fed=fed)


def train_plainly(folder: Path, text: str, arguments: Sequence[str] = ("out.pt",)) -> Ended:
    """As `plain`, in a fork that has torch: where only what the script computes matters."""
    if all_are_executed:
        return plain(folder, text, arguments)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "script.py").write_text(text)
    code, stdout, stderr = _READY.run(folder, arguments, _environment(folder))
    return Ended(folder, code, stdout, stderr)


def supervised(
    folder: Path,
    text: str,
    arguments: Sequence[str] = ("out.pt",),
    *,
    settings: Sequence[str] = (),
    options: Sequence[str] = (),
    faults: str = "",
    timeout_s: float = TIMEOUT_S,
    executed: bool = False,
    fed: str | None = None,
) -> Ended:
    """Runs a script under `supervisor run`, with reports off and short waits.

    Args:
        fed: what comes on standard input, by a pipe.
        executed: the worker is executed as it is by users; else it is a fork of a process that
            has torch already.
    """
    given = [*QUICK, *settings, *([f"faults={faults}"] if faults else [])]
    # That fault finds the parent above the subreaper, where the process that forks is.
    executed = executed or "sigterm_parent" in faults
    line = [*_command(executed), "run", "--run-dir", "run", *options]
    for setting in given:
        line += ["--set", setting]
    line += ["script.py", *arguments]
    return _run(folder, text, line, timeout_s=timeout_s, fed=fed)


def supervisor_command() -> list[str]:
    return [sys.executable, "-m", "supervisor.cli.main"]


def _command(executed: bool) -> list[str]:
    if executed or all_are_executed:
        return supervisor_command()
    return [sys.executable, str(_READY_PARENT), _READY.address]


def again(ended: Ended, *words: str, executed: bool = False, fed: str | None = None) -> Ended:
    """Runs another `supervisor` command in the same folder."""
    return _finish(ended.folder, [*_command(executed), *words], fed=fed)


def differences(one: Any, other: Any, path: str = "") -> list[str]:
    """Returns the paths at which two results are not the same to the bit."""
    if isinstance(one, dict):
        if one.keys() != other.keys():
            return [f"{path}: keys"]
        return [d for key in one for d in differences(one[key], other[key], f"{path}.{key}")]
    if isinstance(one, (list, tuple)):
        if len(one) != len(other):
            return [f"{path}: length"]
        pairs = enumerate(zip(one, other, strict=True))
        return [d for i, (a, b) in pairs for d in differences(a, b, f"{path}[{i}]")]
    if isinstance(one, torch.Tensor):
        return [] if torch.equal(one, other) else [path]
    return [] if one == other or (one != one and other != other) else [path]


def _run(
    folder: Path,
    text: str,
    line: list[str],
    *,
    timeout_s: float = TIMEOUT_S,
    fed: str | None = None,
) -> Ended:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "script.py").write_text(text)
    return _finish(folder, line, timeout_s=timeout_s, fed=fed)


def _finish(
    folder: Path, line: list[str], *, timeout_s: float = TIMEOUT_S, fed: str | None = None
) -> Ended:
    done = subprocess.run(
        line,
        cwd=folder,
        env=_environment(folder),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        input=fed,
    )
    return Ended(folder, done.returncode, done.stdout, done.stderr)


def _environment(folder: Path) -> dict[str, str]:
    # A library of its own: what other tests filed must not change what is tried first here.
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "SUPERVISOR_CASES": str(folder / ".cases.sqlite"),
    }
