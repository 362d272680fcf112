"""What becomes of a killed training, resumed in the way that its framework recommends.

    python -m benchmarks.resume_matrix [--kill-at 13] [--json FILE]

The same small training (benchmarks/framework_trainers.py) is written for Lightning, for the Trainer
of Hugging Face and for Accelerate, each saving every five updates. It runs once undisturbed, and
once killed with SIGKILL in the middle of an epoch and resumed; the weights at the end are compared
with those of the same framework's undisturbed run. The last line is the loop without a framework
under `supervisor run`. What is not installed is said to be so.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from benchmarks.framework_trainers import CASES, SAVE_EVERY

TRAINER = Path(__file__).with_name("framework_trainers.py")
FRAMEWORKS = ("lightning", "transformers", "accelerate")
SUPERVISOR = "supervisor run"
RUN = ["-m", "supervisor.cli.main", "run", "--quiet", "--run-dir", "run"]
SETTINGS = ("report.enabled=false", f"checkpoint.every_steps={SAVE_EVERY}")
KILLED = -9


class Failed(Exception):
    """A training did not do what it was started for."""


def version(framework: str) -> str:
    """Returns the installed version, "" if there is none."""
    if importlib.util.find_spec(framework) is None:
        return ""
    return importlib.metadata.version(framework)


def run(folder: Path, line: list[str], expected: int = 0) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode != expected:
        last = done.stderr.strip().splitlines()[-1:] or [""]
        raise Failed(f"ended with {done.returncode}: {last[0]}")


def compare(folder: Path) -> str:
    """Returns how far the weights of ``resumed.pt`` are from those of ``whole.pt``."""
    whole, resumed = (
        torch.load(folder / name, weights_only=True) for name in ("whole.pt", "resumed.pt")
    )
    apart = max(float((whole[key] - resumed[key]).abs().max()) for key in whole)
    if all(torch.equal(whole[key], resumed[key]) for key in whole):
        return "identical"
    return f"differ by {apart:.1g}"


def of_framework(framework: str, case: str, kill_at: int, folder: Path) -> str:
    """Kills and resumes one training in its own way."""
    line = [sys.executable, str(TRAINER), framework, case]
    undisturbed = folder / "undisturbed"
    undisturbed.mkdir()
    try:
        run(undisturbed, [*line, str(folder / "whole.pt")])
        run(folder, [*line, "resumed.pt", "--kill-at", str(kill_at)], KILLED)
        run(folder, [*line, "resumed.pt", "--resume"])
    except Failed as failure:
        return str(failure)
    return compare(folder)


def of_supervisor(case: str, kill_at: int, folder: Path) -> str:
    """Kills the plain loop under `supervisor run`, which resumes it by itself."""
    script = [str(TRAINER), "plain", case]
    fault = f"faults=[{{kind: sigkill, step: {kill_at - 1}}}]"
    supervised = [sys.executable, *RUN]
    for setting in (*SETTINGS, fault):
        supervised += ["--set", setting]
    try:
        run(folder, [sys.executable, *script, "whole.pt"])
        run(folder, [*supervised, *script, "resumed.pt"])
    except Failed as failure:
        return str(failure)
    return compare(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kill-at", type=int, default=13, help="updates until the kill")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    names = list(CASES)
    print("| resumed by | " + " | ".join(names) + " |\n|" + " --- |" * (1 + len(names)))
    table: dict[str, dict[str, str]] = {}
    for framework in (*FRAMEWORKS, SUPERVISOR):
        installed = "" if framework == SUPERVISOR else version(framework)
        if framework != SUPERVISOR and not installed:
            print(f"| {framework} | not installed |", flush=True)
            continue
        found = {}
        for case in names:
            with tempfile.TemporaryDirectory() as folder:
                if framework == SUPERVISOR:
                    found[case] = of_supervisor(case, options.kill_at, Path(folder))
                else:
                    found[case] = of_framework(framework, case, options.kill_at, Path(folder))
        table[f"{framework} {installed}".strip()] = found
        cells = " | ".join(found[case] for case in names)
        print(f"| {framework} {installed} | {cells} |", flush=True)
    if options.json:
        options.json.write_text(json.dumps(table, indent=2))


if __name__ == "__main__":
    main()
