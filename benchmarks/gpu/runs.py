"""Starts trainings with plain python and under `supervisor run`, and compares what they leave."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

TRAININGS = Path(__file__).with_name("trainings.py")
SUPERVISOR = ("-m", "supervisor.cli.main", "run", "--set", "report.enabled=false")
QUICK = ("restart.backoff_s=0.05",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A run that has ended; `out` is what the script was told to write."""

    code: int
    seconds: float
    said: str
    out: Path
    run_dir: Path

    def events(self, kind: str) -> list[dict[str, Any]]:
        path = self.run_dir / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [event for event in map(json.loads, lines) if event["kind"] == kind]

    def result(self) -> Any:
        if self.out.suffix == ".json":
            return json.loads(self.out.read_text())
        return torch.load(self.out, weights_only=True, map_location="cpu")

    def treatments(self) -> list[str]:
        """Those that change the training; checkpoints do not."""
        applied = [e["name"] for e in self.events("action") if e["outcome"] == "applied"]
        return [name for name in applied if name not in ("checkpoint", "capture_batch")]

    def warnings(self) -> list[str]:
        return [event["message"] for event in self.events("warning")]

    def ends(self) -> list[str]:
        """How its attempts ended, all but the last good one."""
        found = [e for e in self.events("worker_exited") if e["cause"] != "completed"]
        return [f"{e['cause']} after step {e['last_step']}: {first(e['evidence'])}" for e in found]

    def exactness(self) -> list[str]:
        return [f"{e['exactness']} at {e['from_step']}" for e in self.events("resumed")]


def first(evidence: Sequence[str]) -> str:
    return evidence[0].strip()[:160] if evidence else ""


def run(
    folder: Path,
    words: Sequence[str],
    *,
    supervised: bool,
    script: Path = TRAININGS,
    settings: Sequence[str] = (),
    suffix: str = ".pt",
    timeout_s: float = 180.0,
) -> Ended:
    """Runs `script` with `words` and an ``--out`` of its own in the new `folder`; if it takes
    longer than `timeout_s`, its code is -9."""
    folder.mkdir(parents=True)
    out, run_dir = folder / f"out{suffix}", folder / "run"
    line = [sys.executable]
    if supervised:
        line += [*SUPERVISOR, "--run-dir", str(run_dir)]
        for setting in (*QUICK, *settings):
            line += ["--set", setting]
    line += [str(script), *words, "--out", str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    environment["SUPERVISOR_CASES"] = str(folder / "cases")
    began = time.monotonic()
    with (folder / "said").open("w+b") as said:
        process = subprocess.Popen(line, stdout=said, stderr=said, env=environment)
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.terminate()
            process.wait(30)
            code = -9
        said.seek(0)
        text = said.read().decode(errors="replace")
    seconds = time.monotonic() - began
    return Ended(code=code, seconds=seconds, said=text, out=out, run_dir=run_dir)


def differences(one: Any, other: Any, path: str = "") -> list[str]:
    """The places at which two results are not the same to the bit."""
    if isinstance(one, dict) and isinstance(other, dict):
        keys = [key for key in (one.keys() | other.keys()) if key != "peak_bytes"]
        return [
            found
            for key in sorted(keys, key=str)
            for found in differences(one.get(key), other.get(key), f"{path}.{key}")
        ]
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        if len(one) != len(other):
            return [f"{path}: {len(one)} and {len(other)}"]
        pairs = enumerate(zip(one, other, strict=True))
        return [found for i, pair in pairs for found in differences(*pair, f"{path}[{i}]")]
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        same = one.shape == other.shape and torch.equal(one.nan_to_num(), other.nan_to_num())
        return [] if same else [path]
    return [] if one == other or (one != one and other != other) else [path]
