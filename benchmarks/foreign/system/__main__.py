"""Small scripts of kinds from public reports that meet the system, each struck in its own way.

    python -m benchmarks.foreign.system [--only WORD ...] [--jobs 2] [--json FILE]

Each is run by plain python, healthy under `supervisor run`, struck as its kind is (a signal to one
process or to all, a full disk, an error), resumed until it ends, and killed with SIGKILL. A row
holds for each: the exit code, what the resumes were called, and whether printed weights are plain
python's. The exit code is 1 if a row is not as `KINDS` says.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from benchmarks.struck_run import StruckRun, disk, environment, full, kill

SCRIPTS = Path(__file__).with_name("scripts")
SETTINGS = (
    "checkpoint.every_steps=7", "restart.backoff_s=0.2", "checkpoint.min_free_gib=0",
    "watchdog.grace_s=10",
)  # fmt: skip
AT = 30
KILLED_AT = 52


def to_parent(number: int) -> Callable[[StruckRun], None]:
    return lambda run: run.process.send_signal(number)


def to_worker(number: int) -> Callable[[StruckRun], None]:
    return lambda run: kill(run.worker(), number)


def to_all(number: int) -> Callable[[StruckRun], None]:
    """As a scheduler does that signals each process of a job."""

    def strike(run: StruckRun) -> None:
        parent = psutil.Process(run.process.pid)
        for process in [parent, *parent.children(recursive=True)]:
            with suppress(psutil.Error):
                process.send_signal(number)

    return strike


def fill_its_disk(run: StruckRun) -> None:
    with full(run.folder / "disk"):
        until = time.monotonic() + 60
        while "ended" not in (run.folder / "err").read_text() and time.monotonic() < until:
            time.sleep(0.1)
        time.sleep(1.0)


def take_its_server_down(run: StruckRun) -> None:
    """Until the attempt has failed by it."""
    down = run.folder / "server_down"
    down.touch()
    until = time.monotonic() + 60
    while "attempt 1 ended" not in (run.folder / "err").read_text() and time.monotonic() < until:
        time.sleep(0.05)
    down.unlink()


@dataclass(frozen=True)
class Kind:
    """How a script is struck, the first exit code then, and a file that is there after it."""

    strike: Callable[[StruckRun], None] | None
    code: int = 0
    leaves: str = ""
    settings: tuple[str, ...] = ()


KINDS = {
    "sigterm_flag": Kind(to_parent(signal.SIGTERM), 75, "preempted.pt"),
    "usr2_requeue": Kind(to_all(signal.SIGUSR2), 75, "requeue.pt"),
    "usr1_saves_and_goes_on": Kind(
        # A training that ends within the grace time of a signal counts as ended by it.
        *(to_parent(signal.SIGUSR1), 0, "asked.pt"),
        ("watchdog.grace_s=0.5",),
    ),
    "ctrl_c_then_test": Kind(to_parent(signal.SIGINT), 75, "interrupted.pt"),
    "second_signal_is_harder": Kind(to_all(signal.SIGTERM), 75, "stopped.pt"),
    "exit_143": Kind(to_worker(signal.SIGTERM), 75),
    "asyncio_signals": Kind(to_parent(signal.SIGTERM), 75),
    "alarm_and_faulthandler": Kind(to_worker(signal.SIGUSR1), 0, "stacks.txt"),
    "full_disk_at_save": Kind(fill_its_disk, 0, "disk/own79.pt"),
    "log_thread_and_error": Kind(take_its_server_down),
    "search_reuses_addresses": Kind(None),
    "images_as_text": Kind(None),
}


@dataclass
class Row:
    """What came of one script."""

    script: str
    plain: str
    healthy: str
    struck: str
    killed: str
    is_right: bool


def _copy(name: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(SCRIPTS / "common.py", folder)
    shutil.copy(SCRIPTS / f"{name}.py", folder / "train.py")


def _final(text: str) -> str:
    return next((line for line in text.splitlines() if line.startswith("FINAL")), "no end")


def _plainly(name: str, folder: Path) -> str:
    """The end of plain python, which nothing strikes."""
    _copy(name, folder)
    (folder / "disk").mkdir()
    line = [sys.executable, "train.py"]
    ran = subprocess.run(line, cwd=folder, env=environment(), capture_output=True, text=True)
    return _final(ran.stdout)


def _supervised(
    name: str, folder: Path, strike: Callable[[StruckRun], None] | None, at: int, wanted: str
) -> tuple[int, str, StruckRun]:
    """Returns the first exit code, what is to be told, and the run."""
    _copy(name, folder)
    run = StruckRun(folder, folder / "run", (*SETTINGS, *KINDS[name].settings), {})
    with disk(folder / "disk", is_mounted=name == "full_disk_at_save" and os.geteuid() == 0):
        run.begin("train.py")
        if strike and run.wait_for_step(at):
            strike(run)
        first = run.process.wait(240)
        leaves = KINDS[name].leaves if strike is KINDS[name].strike else ""
        left = not leaves or (folder / leaves).exists()
        last = run.resume_until_it_ends()
    # A run that was stopped prints an end of its own; the end of the training comes last.
    ends = [line for line in run.printed().splitlines() if line.startswith("FINAL")]
    same = "same" if ends and ends[-1] == wanted else "OTHER"
    codes = f"{first}" if first == last else f"{first}, then {last}"
    words = [codes, *run.said(), same] + ([] if left else [f"no {leaves}"])
    return first, ", ".join(words), run


def trial(name: str, folder: Path) -> Row:
    kind = KINDS[name]
    wanted = _plainly(name, folder / "plain")
    _, healthy, _ = _supervised(name, folder / "healthy", None, 0, wanted)
    struck, first = "as healthy", kind.code
    if kind.strike:
        first, struck, _ = _supervised(name, folder / "struck", kind.strike, AT, wanted)
    _, killed, _ = _supervised(
        name, folder / "killed", to_worker(signal.SIGKILL), KILLED_AT, wanted
    )
    rows = (healthy, struck, killed)
    is_right = (
        wanted != "no end"
        and first == kind.code
        and not any("OTHER" in told or " no " in told for told in rows)
        and all("70" not in told.split(", ") for told in rows)
    )
    return Row(name, wanted, healthy, struck, killed, is_right)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="an empty folder for the runs, kept afterwards")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    names = [n for n in KINDS if not given.only or any(word in n for word in given.only)]
    rows = []
    print("| script | healthy | struck | killed | right |\n| --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(given.jobs) as pool:
        folder = given.keep or Path(temporary)
        for row in pool.map(lambda name: trial(name, folder / name), names):
            rows.append(row)
            told = (
                row.script,
                row.healthy,
                row.struck,
                row.killed,
                "yes" if row.is_right else "NO",
            )
            print(f"| {' | '.join(told)} |", flush=True)
    print(f"{sum(row.is_right for row in rows)} of {len(rows)} right")
    if given.json:
        given.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    return not all(row.is_right for row in rows)


if __name__ == "__main__":
    raise SystemExit(main())
