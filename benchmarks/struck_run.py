"""A real supervised run that is struck from outside (killed, stopped, no disk), and resumed."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

TIMEOUT_S = 240.0
DISK_MIB = 24
RESUMES_AT_MOST = 4


class StruckRun:
    """A supervised run, seen from outside."""

    def __init__(
        self, folder: Path, run_dir: Path, settings: Sequence[str], limits: Mapping[int, int]
    ) -> None:
        self.folder, self.run_dir, self.limits = folder, run_dir, dict(limits)
        folder.mkdir(exist_ok=True)
        self._settings = [word for setting in settings for word in ("--set", setting)]
        self._line: list[str] = []
        self._given: set[Path] = set()

    def begin(self, script: str) -> None:
        self._line = ["run", "--run-dir", str(self.run_dir), *self._settings, script]
        self._given = {*self.folder.iterdir()}
        self.start(*self._line)

    def start(self, *words: str) -> None:
        with open(self.folder / "out", "ab") as out, open(self.folder / "err", "ab") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "supervisor.cli.main", *words],
                cwd=self.folder, env=environment(), stdout=out, stderr=err,
                stdin=subprocess.DEVNULL, start_new_session=True,
                preexec_fn=lambda: _limit(self.limits),
            )  # fmt: skip

    def wait_for_step(self, step: int) -> bool:
        """False if the run ended before it."""
        until = time.monotonic() + TIMEOUT_S
        while f"step {step} " not in self.printed():
            if self.process.poll() is not None or time.monotonic() > until:
                return False
            time.sleep(0.01)
        return True

    def printed(self) -> str:
        return (self.folder / "out").read_text(errors="replace")

    def worker(self) -> psutil.Process | None:
        """The script's process: the child of the subreaper."""
        with suppress(psutil.Error):
            for process in psutil.Process(self.process.pid).children(recursive=True):
                if any("subreaper.py" in word for word in process.cmdline()):
                    return next(iter(process.children()), None)
        return None

    def resume_until_it_ends(self) -> int:
        """As a user would; returns the last exit code (`TIMEOUT_S` without an end: 124)."""
        for _ in range(RESUMES_AT_MOST):
            try:
                code = self.process.wait(TIMEOUT_S)
            except subprocess.TimeoutExpired:
                _end(self.process)
                return 124
            if not (code in (75, 128 + signal.SIGTERM, 128 + signal.SIGINT) or code < 0):
                return code
            if code == 75 or any(self.run_dir.glob("checkpoints/step_*")):
                self.start("resume", str(self.run_dir))
            else:  # another run: whoever begins it clears away what the first has left
                for path in {*self.folder.glob("*.*")} - self._given:
                    path.unlink() if path.is_file() else None
                self.start(*self._line[:2], f"{self.run_dir}-again", *self._line[3:])
        return self.process.wait(TIMEOUT_S)

    def said(self) -> list[str]:
        """What each new beginning was called; torn lines are left out."""
        said = []
        with suppress(OSError):
            for line in (self.run_dir / "events.jsonl").read_text(errors="replace").splitlines():
                with suppress(ValueError):
                    event = json.loads(line)
                    if event["kind"] == "resumed":
                        said.append(str(event["exactness"]))
                    elif event["kind"] == "action" and event.get("outcome") == "applied":
                        said.append(f"treated: {event['name']}")
        return said


def kill(process: psutil.Process | None, number: int = signal.SIGKILL) -> None:
    with suppress(psutil.Error):
        if process is not None:
            process.send_signal(number)


def _limit(limits: dict[int, int]) -> None:
    for which, value in limits.items():
        resource.setrlimit(which, (value, value))


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(psutil.Error):
        for child in psutil.Process(process.pid).children(recursive=True):
            kill(child)
    process.kill()
    process.wait()


@contextmanager
def full(disk: Path) -> Iterator[None]:
    ballast = disk / "ballast"
    with suppress(OSError), open(ballast, "wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    yield
    ballast.unlink()


@contextmanager
def disk(path: Path, *, is_mounted: bool) -> Iterator[None]:
    path.mkdir()
    if not is_mounted:
        yield
        return
    line = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(path)]
    subprocess.run(line, check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(path)], check=False)
