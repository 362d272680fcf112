"""Random faults of processes, disks, limits and files against real runs, one a round.

    python -m benchmarks.chaos [--rounds 60] [--seed 0] [--jobs 2] [--only WORD ...] [--json FILE]

Each round takes a random script and a random fault, lets it strike at a random step of `supervisor
run`, takes it back where it is one that passes (a disk that is full for some seconds), calls
`supervisor resume` as a user would where the run was interrupted or its parent died, and compares
the end with plain python's: printed weights, the script's log, its own checkpoint. Disks are small
tmpfs mounts, so those rounds need root; without it they are left out and counted.

A round is `right` (the end of plain python, whatever was said), `other end, said` (approximate or
from the start, and said so), `ended by us` (no end although plain python reaches one), or FALSE
(called exact, or not said at all, and another end). The exit code is 1 if any is the last two.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

import psutil

from benchmarks.struck_run import StruckRun, disk, environment, full, kill

HEAD = """
import csv, hashlib, os, sys, time, torch
torch.manual_seed(0)
X = torch.randn(256, 8); Y = X.sum(1, keepdim=True)
net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Dropout(0.1), torch.nn.Linear(32, 1))
opt = torch.optim.AdamW(net.parameters(), 1e-2)
def done(step, loss):
    print("step", step, round(loss.item(), 5), flush=True)
    with open("log.csv", "a", newline="") as log: csv.writer(log).writerow([step, loss.item()])
    if step % 25 == 0: torch.save({"net": net.state_dict(), "step": step}, "own.pt")
    time.sleep(0.02)
"""
TAIL = """
weights = b"".join(p.detach().numpy().tobytes() for p in net.parameters())
print("FINAL", hashlib.sha1(weights).hexdigest()[:16], flush=True)
"""
LOOPS = {
    "batches by hand": """
for step in range(1, 111):
    rows = torch.randint(256, (32,)); loss = (net(X[rows]) - Y[rows]).pow(2).mean()
    opt.zero_grad(); loss.backward(); opt.step(); done(step, loss)
""",
    "loader workers": """
class Noisy(torch.utils.data.Dataset):
    def __len__(self): return 256
    def __getitem__(self, i): return X[i] + 0.01 * torch.randn(8), Y[i]
step = 0
for epoch in range(14):
    for x, y in torch.utils.data.DataLoader(Noisy(), 32, shuffle=True, num_workers=2):
        step += 1; loss = (net(x) - y).pow(2).mean()
        opt.zero_grad(); loss.backward(); opt.step(); done(step, loss)
""",
    "evaluation, schedule": """
plan = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=1); best = 1e9
for step in range(1, 111):
    rows = torch.randint(256, (32,)); loss = (net(X[rows]) - Y[rows]).pow(2).mean()
    opt.zero_grad(); loss.backward(); opt.step(); done(step, loss)
    if step % 15 == 0:
        net.eval()
        with torch.no_grad(): value = (net(X) - Y).pow(2).mean().item()
        net.train(); plan.step(value); best = min(best, value); print("best", best, flush=True)
""",
    "accumulation, bf16": """
for step in range(1, 111):
    for _ in range(2):
        rows = torch.randint(256, (16,))
        with torch.autocast("cpu", torch.bfloat16): out = net(X[rows])
        loss = (out.float() - Y[rows]).pow(2).mean() / 2; loss.backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step(); opt.zero_grad(); done(step, loss)
""",
}
SETTINGS = (
    "checkpoint.every_steps=12", "checkpoint.min_free_gib=0", "restart.backoff_s=0.1",
    "report.enabled=false",
)  # fmt: skip


@dataclass
class Round:
    """One fault and what came of it."""

    number: int
    fault: str
    script: str
    step: int
    verdict: str = ""
    said: list[str] = field(default_factory=list)
    detail: str = ""


Fault = Callable[[StruckRun, random.Random], None]


def kill_worker(run: StruckRun, chance: random.Random) -> None:
    kill(run.worker())


def kill_parent(run: StruckRun, chance: random.Random) -> None:
    run.process.kill()
    run.process.wait()
    time.sleep(1.0)  # its worker ends by itself


def kill_both(run: StruckRun, chance: random.Random) -> None:
    worker = run.worker()
    run.process.kill()
    kill(worker)
    run.process.wait()


def kill_guardian(run: StruckRun, chance: random.Random) -> None:
    if (worker := run.worker()) is not None:
        kill(worker.parent())


def kill_a_loader_worker(run: StruckRun, chance: random.Random) -> None:
    if (worker := run.worker()) is not None:
        kill(chance.choice(worker.children() or [worker]))


def kill_worker_twice(run: StruckRun, chance: random.Random) -> None:
    kill_worker(run, chance)
    time.sleep(chance.uniform(0.5, 4.0))
    kill_worker(run, chance)


def kill_parent_and_its_successor(run: StruckRun, chance: random.Random) -> None:
    """Two resumes."""
    kill_parent(run, chance)
    run.start("resume", str(run.run_dir))
    time.sleep(chance.uniform(0.5, 6.0))
    run.process.kill()
    run.process.wait()


def terminate(run: StruckRun, chance: random.Random) -> None:
    run.process.send_signal(chance.choice((signal.SIGTERM, signal.SIGINT)))


def terminate_the_worker(run: StruckRun, chance: random.Random) -> None:
    """As a scheduler does that signals all processes of a job."""
    kill(run.worker(), signal.SIGTERM)


def stop_for_a_while(run: StruckRun, chance: random.Random) -> None:
    process = chance.choice([psutil.Process(run.process.pid), run.worker()])
    kill(process, signal.SIGSTOP)
    time.sleep(3.0)
    kill(process, signal.SIGCONT)


def fill_the_disk(run: StruckRun, chance: random.Random) -> None:
    with full(run.run_dir.parent):
        time.sleep(chance.uniform(0.5, 3.0))


def fill_the_disk_and_kill_worker(run: StruckRun, chance: random.Random) -> None:
    with full(run.run_dir.parent):
        kill(run.worker())
        time.sleep(4.0)


def make_the_disk_read_only(run: StruckRun, chance: random.Random) -> None:
    """Every file that is opened from now on: a busy disk cannot be mounted anew, but a second,
    read-only mount of it can lie over the first."""
    disk = str(run.run_dir.parent)
    subprocess.run(["mount", "--bind", disk, disk], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", disk], check=True)
        time.sleep(chance.uniform(0.5, 3.0))
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


def flip_a_bit(run: StruckRun, chance: random.Random) -> None:
    """Of a file of the run directory, while nobody lives."""
    kill_both(run, chance)
    time.sleep(1.0)
    files = sorted(p for p in run.run_dir.rglob("*") if p.is_file() and p.stat().st_size)
    path = chance.choice(files)
    data = bytearray(path.read_bytes())
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)
    (run.folder / "damaged").write_text(str(path.relative_to(run.run_dir)))


def cut_a_file(run: StruckRun, chance: random.Random) -> None:
    """As after a power failure: the newest bytes of a file are gone."""
    kill_both(run, chance)
    time.sleep(1.0)
    files = sorted(p for p in run.run_dir.rglob("*") if p.is_file() and p.stat().st_size)
    path = chance.choice(files)
    os.truncate(path, chance.randrange(path.stat().st_size))
    (run.folder / "damaged").write_text(str(path.relative_to(run.run_dir)))


def nothing(run: StruckRun, chance: random.Random) -> None:
    """The limits are the fault."""


FAULTS: dict[str, Fault] = {
    f.__name__.replace("_", " "): f
    for f in (
        kill_worker, kill_parent, kill_both, kill_guardian, kill_a_loader_worker,
        kill_worker_twice, kill_parent_and_its_successor, terminate, terminate_the_worker,
        stop_for_a_while, fill_the_disk, fill_the_disk_and_kill_worker, make_the_disk_read_only,
        flip_a_bit, cut_a_file,
    )
}  # fmt: skip
LIMITED: dict[str, Callable[[str, str], dict[int, int]]] = {
    "limit of descriptors": lambda script, folder: {resource.RLIMIT_NOFILE: 64},
    "limit of a file's size": lambda script, folder: {resource.RLIMIT_FSIZE: 1 << 20},
    "limit of memory": lambda script, folder: {
        resource.RLIMIT_AS: int(1.3 * plainly(script, folder)[1])
    },
}


@cache
def plainly(script: str, folder: str) -> tuple[tuple[str, ...], int]:
    """What a run of plain python ends with, and the most address space that it took."""
    where = Path(folder) / f"plain {script}"
    where.mkdir()
    text = HEAD + LOOPS[script] + TAIL + "print(open('/proc/self/status').read())"
    (where / "train.py").write_text(text)
    line = [sys.executable, "train.py"]
    ran = subprocess.run(line, cwd=where, env=environment(), capture_output=True, text=True)
    (where / "out").write_text(ran.stdout)
    peak = next(line for line in ran.stdout.splitlines() if line.startswith("VmPeak"))
    return _end_of(where), int(peak.split()[1]) * 1024


def _end_of(folder: Path) -> tuple[str, ...]:
    """The printed weights, the script's log, and its own checkpoint."""
    import torch

    printed = (folder / "out").read_text(errors="replace").splitlines()
    final = [line for line in printed if line.startswith("FINAL")][-1:]
    log = (folder / "log.csv").read_text() if (folder / "log.csv").exists() else ""
    own = ""
    with suppress(OSError, RuntimeError):
        saved = torch.load(folder / "own.pt", weights_only=True)
        own = f"{saved['step']} {[v.double().sum().item() for v in saved['net'].values()]}"
    return (*final, log, own)


def strike(number: int, seed: int, folder: str, kinds: list[str]) -> Round:
    chance = random.Random(seed * 1_000_003 + number)
    fault = chance.choice(kinds)
    script = "loader workers" if "loader" in fault else chance.choice(list(LOOPS))
    one = Round(number, fault, script, chance.randrange(5, 90))
    expected = plainly(script, folder)[0]
    where = Path(folder) / f"round {number}"
    where.mkdir()
    with disk(where / "disk", is_mounted="disk" in fault):
        limits = LIMITED[fault](script, folder) if fault in LIMITED else {}
        text = HEAD + LOOPS[script] + TAIL
        run = StruckRun(where / "work", where / "disk" / "run", SETTINGS, limits)
        (run.folder / "train.py").write_text(text)
        run.begin("train.py")
        if run.wait_for_step(one.step):
            time.sleep(chance.uniform(0.0, 0.02))
            FAULTS.get(fault, nothing)(run, chance)
        code = run.resume_until_it_ends()
        one.said = run.said()
        _judge(one, code, expected, run)
    return one


def _judge(one: Round, code: int, expected: tuple[str, ...], run: StruckRun) -> None:
    found = _end_of(run.folder)
    damaged = run.folder / "damaged"
    one.detail = damaged.read_text() if damaged.exists() else ""
    admitted = "approximate" in one.said or any(s.startswith("treated") for s in one.said)
    if code != 0:
        one.verdict = "ended by us"
        lines = (run.folder / "err").read_text(errors="replace").splitlines()
        one.detail += f" exit {code}: {' / '.join(lines[-3:])}"
    elif found == expected:
        one.verdict = "right"
    else:
        names = ("weights", "log", "own checkpoint")
        differs = [n for n, a, b in zip(names, found, expected, strict=False) if a != b]
        one.detail += f" differs: {differs}"
        fresh = not one.said
        one.verdict = (
            "other end, said" if admitted else "FALSE (from the start)" if fresh else "FALSE"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", nargs="*", default=[], help="faults with one of these words")
    parser.add_argument("--keep", type=Path, help="an empty folder for the runs, kept afterwards")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    kinds = [k for k in (*FAULTS, *LIMITED) if not given.only or any(w in k for w in given.only)]
    if os.geteuid() != 0:
        print("no root: rounds with disks are left out")
        kinds = [kind for kind in kinds if "disk" not in kind]
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(given.jobs) as pool:
        folder = str(given.keep or temporary)
        for script in LOOPS:
            plainly(script, folder)
        rounds = []
        numbers = range(given.rounds)
        for one in pool.map(lambda n: strike(n, given.seed, folder, kinds), numbers):
            rounds.append(one)
            print(f"{one.number:3} {one.fault:32} {one.script:22} step {one.step:3}: "
                  f"{one.verdict} {one.said} {one.detail}", flush=True)  # fmt: skip
    for verdict, count in Counter(r.verdict for r in rounds).items():
        print(f"{verdict}: {count} of {len(rounds)}")
    if given.json:
        given.json.write_text(json.dumps([asdict(r) for r in rounds], indent=1))
    return any(r.verdict.startswith(("FALSE", "ended")) for r in rounds)


if __name__ == "__main__":
    raise SystemExit(main())
