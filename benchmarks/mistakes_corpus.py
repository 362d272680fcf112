"""Healthy trainings of every kind there is here: none may be accused of a silent mistake.

    python -m benchmarks.mistakes_corpus [--generated N] [--json FILE] [SCRIPT...]

The healthy trainings of `benchmarks.healthy`, N generated programs, the examples, the healthy
scripts and twins of the tests, and further scripts. Each runs in a fork of this process, in an
empty folder, for 60 seconds of CPU time at most.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.generated.program import random_recipe, text
from benchmarks.healthy import KINDS, train
from benchmarks.mistakes import alerts_of

ROOT = Path(__file__).parents[1]
OWN = ROOT / "tests" / "worker" / "mistakes"
LIMIT_S, CPU_S = 900.0, 60


def healthy_scripts(folder: Path, generated: int) -> Iterator[tuple[str, Path, list[str]]]:
    """Yields names, scripts and their arguments."""
    for seed in range(generated):
        script = folder / f"generated_{seed}.py"
        script.write_text(text(random_recipe(random.Random(seed))))
        yield script.stem, script, []
    for path in sorted([*OWN.glob("healthy/*.py"), *OWN.glob("*/*_ok.py")]):
        if not path.name.startswith(("12_", "53_")):  # they need two ranks
            yield path.stem, path, []
    for path in sorted((ROOT / "examples").glob("*.py")):
        if path.name != "demo.py":
            yield f"example {path.stem}", path, []
    for kind in KINDS:
        yield f"healthy {kind}", Path(train.__file__), [kind]


def judged(script: Path, words: Sequence[str]) -> dict[str, Any]:
    """Runs it in a fork; returns what was told, and how it ended."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        _in_child(write, script, words)
    os.close(write)
    ends, has_ended = time.monotonic() + LIMIT_S, False
    while not has_ended and time.monotonic() < ends:
        time.sleep(0.02)
        has_ended = bool(os.waitpid(child, os.WNOHANG)[0])
    if not has_ended:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    with os.fdopen(read) as pipe:
        told = pipe.read()
    return json.loads(told) if told else {"failed": "no end within its time"}


def _in_child(write: int, script: Path, words: Sequence[str]) -> None:
    folder = tempfile.mkdtemp(prefix="mistakes-")
    os.chdir(folder)
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    try:
        told = [f"{kind}: {message}" for kind, _, message, _ in alerts_of(script, words)]
        found: dict[str, Any] = {"told": told}
    except BaseException as error:
        found = {"failed": repr(error)[:300]}
    os.write(write, json.dumps(found).encode())
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scripts", nargs="*", type=Path)
    parser.add_argument("--generated", type=int, default=60)
    parser.add_argument("--words", default="", help="arguments of the further scripts")
    parser.add_argument("--only-these", action="store_true", help="the further scripts alone")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        own = () if given.only_these else healthy_scripts(Path(folder), given.generated)
        more = ((path.stem, path.resolve(), given.words.split()) for path in given.scripts)
        for name, script, words in (*own, *more):
            rows.append({"script": name, **judged(script, words)})
            print(json.dumps(rows[-1]), flush=True)
    silent = sum(row.get("told") == [] for row in rows)
    accused = sum(bool(row.get("told")) for row in rows)
    failed = len(rows) - silent - accused
    print(f"{len(rows)} scripts: {silent} silent, {accused} accused, {failed} did not run")
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")
    sys.exit(1 if accused else 0)


if __name__ == "__main__":
    main()
