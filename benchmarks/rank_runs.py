"""Runs of the ranks' trainer: torchrun's, and supervised ones with a rank killed from outside."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from supervisor.storage.run.mailboxes import replayed_steps
from supervisor.storage.run.rundir import RunDirectory

TRAINER = Path(__file__).with_name("ranks_trainer.py")
TIMEOUT_S = 900.0
_POLL_S = 0.001


@dataclass
class Killer:
    """Sends SIGKILL to one rank while a checkpoint is saved, or while all ranks replay.

    Attributes:
        during: ``save`` or ``replay``.
        rank: which one.
        wait: saves that are let through before; of a replay, none.
        jitter_s: between what it waited for and the kill.
        hit: the rank was killed, and what it was to be killed in had not ended yet.
    """

    during: str
    rank: int
    wait: int
    jitter_s: float
    hit: bool = False

    @classmethod
    def drawn(cls, during: str, ranks: int, draw: random.Random) -> Killer:
        return cls(during, draw.randrange(ranks), draw.randrange(4), draw.uniform(0.0, 0.01))

    def watch(self, parent: int, run: RunDirectory, ended: threading.Event) -> None:
        """Looks each millisecond until the kill or the run's end."""
        started_s, seen, before = time.time(), 0, False
        while not ended.is_set():
            now = self._is_under_way(run, started_s)
            seen += now and not before
            before = now
            if now and (self.during == "replay" or seen > self.wait):
                victim = _process_of(parent, self.rank)
                time.sleep(self.jitter_s)
                if victim is not None and self._is_under_way(run, started_s):
                    with contextlib.suppress(psutil.Error):
                        victim.kill()
                        self.hit = True
                    return
            time.sleep(_POLL_S)

    def _is_under_way(self, run: RunDirectory, since_s: float) -> bool:
        if self.during == "replay":
            return bool(replayed_steps(run.replayed(self.rank), since_s)) and _resumed(run) == 0
        try:
            names = os.listdir(run.root / "checkpoints")
        except OSError:
            return False
        return any(name.startswith((".part-", ".staged-")) for name in names)


def _resumed(run: RunDirectory) -> int:
    return run.journal.read_text().count('"kind": "resumed"')


def _process_of(parent: int, rank: int) -> psutil.Process | None:
    with contextlib.suppress(psutil.Error):
        for process in psutil.Process(parent).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if process.environ().get("RANK") == str(rank):
                    return process
    return None


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def _ends(folder: Path, ranks: int) -> list[dict[str, Any]]:
    paths = [folder / f"end_{rank}.json" for rank in range(ranks)]
    return [json.loads(path.read_text()) for path in paths if path.exists()]


def run_torchrun(mode: str, ranks: int, steps: int) -> list[dict[str, Any]]:
    """Returns what each rank has written at its end."""
    with tempfile.TemporaryDirectory() as folder:
        line = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        line += ["--nproc-per-node", str(ranks), str(TRAINER), mode, str(steps), folder]
        subprocess.run(line, check=True, capture_output=True, timeout=600, env=_environment())
        return _ends(Path(folder), ranks)


def run_supervised(
    mode: str, ranks: int, steps: int, *settings: str, killer: Killer | None = None
) -> tuple[int, list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns the exit code, what each rank has written at its end, and the journal."""
    with tempfile.TemporaryDirectory() as folder:
        run = RunDirectory(Path(folder, "run"))
        line = [sys.executable, "-m", "supervisor.cli.main", "run", "--quiet"]
        line += ["--run-dir", str(run.root), "--nproc-per-node", str(ranks)]
        for setting in ("report.enabled=false", "restart.backoff_s=0.05", *settings):
            line += ["--set", setting]
        line += [str(TRAINER), mode, str(steps), folder]
        with open(f"{folder}/output.txt", "wb") as output:
            process = subprocess.Popen(line, stdout=output, stderr=output, env=_environment())
            ended = threading.Event()
            watching = threading.Thread(target=lambda: None)
            if killer is not None:
                watching = threading.Thread(target=killer.watch, args=(process.pid, run, ended))
            watching.start()
            try:
                code = process.wait(TIMEOUT_S)
            except subprocess.TimeoutExpired:
                code = -1
                process.terminate()
            finally:
                ended.set()
                watching.join()
        if code == -1:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60.0)
        if code != 0:
            print(Path(folder, "output.txt").read_text()[-3000:], file=sys.stderr)
        lines = run.journal.read_text().splitlines() if run.journal.exists() else []
        return code, _ends(Path(folder), ranks), [json.loads(text) for text in lines]
