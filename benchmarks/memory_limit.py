"""A training within a memory limit that plain Python survives: so must the supervised one.

    python -m benchmarks.memory_limit [--sizes 50 300] [--above 0.2] [--keep FOLDER]

For each size (MB of a model with its two Adam moments) a training runs plainly in a control group
without a limit, which gives its peak. Then it runs plainly, supervised, and killed and resumed,
each within that peak and a fifth more. Printed are peaks of resident memory (the largest process),
ends, attempts, and whether the weights are those of plain Python. Needs the right to make control
groups.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

ROOT = Path("/sys/fs/cgroup")

SCRIPT = """
import sys
import torch

size_mb, steps = int(sys.argv[2]), int(sys.argv[3])
torch.manual_seed(0)
width = int((size_mb * 1e6 / 12 / 4) ** 0.5)
model = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(4)])
optimizer = torch.optim.Adam(model.parameters(), 1e-4)
for step in range(steps):
    inputs = torch.randn(8, width)
    loss = (model(inputs) - inputs).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
torch.save([(p.double().sum().item(), p[:4].clone()) for p in model.parameters()], sys.argv[1])
"""


class MemoryGroup:
    """A control group with a limit, of version 1 or 2, below that of this process.

    Raises:
        OSError: this system lets us make none.
    """

    def __init__(self, limit_bytes: int | None) -> None:
        own = dict(
            line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines()
        )
        self.is_second = "memory" not in own
        base = ROOT if self.is_second else ROOT / "memory"
        within = base / own.get("memory", own.get("", "/")).lstrip("/")
        if self.is_second and within != base and (within / "cgroup.procs").read_text().strip():
            within = within.parent  # a group with processes can have none below it that is limited
        self.path = within / f"supervisor_test_{os.getpid()}_{limit_bytes}"
        if self.is_second and "memory" not in (within / "cgroup.subtree_control").read_text():
            raise OSError(f"{within}: groups below it do not limit memory")
        self.path.mkdir()
        if limit_bytes is not None:
            name = "memory.max" if self.is_second else "memory.limit_in_bytes"
            (self.path / name).write_text(str(limit_bytes))

    def enter(self) -> None:
        """Called in a child: it and all its descendants are limited."""
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def kills(self) -> int:
        """How many of its processes were killed for want of memory."""
        name = "memory.events" if self.is_second else "memory.oom_control"
        lines = dict(line.split() for line in (self.path / name).read_text().splitlines())
        return int(lines.get("oom_kill", 0))

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            self.path.rmdir()


@contextlib.contextmanager
def memory_group(limit_bytes: int | None) -> Iterator[MemoryGroup]:
    group = MemoryGroup(limit_bytes)
    try:
        yield group
    finally:
        group.remove()


@dataclass(frozen=True, kw_only=True)
class Trial:
    """How a training ended within a limit; `peak_mb` of its largest process."""

    code: int
    peak_mb: float
    kills: int
    output: str


def run_within(
    limit_bytes: int | None, folder: Path, command: Sequence[str], timeout_s: float = 300.0
) -> Trial:
    """Runs a command in `folder` within a new control group."""
    with memory_group(limit_bytes) as group:
        told = folder / "peak"
        watcher = (
            "import resource, subprocess, sys, pathlib; code = subprocess.call(sys.argv[2:]);"
            "peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss;"
            "pathlib.Path(sys.argv[1]).write_text(str(peak)); sys.exit(code % 256)"
        )
        done = subprocess.run(
            [sys.executable, "-c", watcher, str(told), *command],
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            preexec_fn=group.enter,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
        peak_kb = float(told.read_text()) if told.exists() else 0.0
        return Trial(
            code=done.returncode,
            peak_mb=peak_kb * 1024 / 1e6,
            kills=group.kills(),
            output=done.stdout + done.stderr,
        )


def supervised_line(size_mb: int, steps: int, name: str, *settings: str) -> list[str]:
    line = [sys.executable, "-m", "supervisor.cli.main", "run", "--run-dir", f"run_{name}"]
    for setting in ("report.enabled=false", "restart.backoff_s=0.05", *settings):
        line += ["--set", setting]
    return [*line, "script.py", f"{name}.pt", str(size_mb), str(steps)]


def same(folder: Path, one: str, other: str) -> bool:
    first, second = (torch.load(folder / f"{name}.pt", weights_only=True) for name in (one, other))
    return all(a[0] == b[0] and torch.equal(a[1], b[1]) for a, b in zip(first, second, strict=True))


def attempts(folder: Path, name: str) -> list[dict[str, object]]:
    lines = (folder / f"run_{name}" / "events.jsonl").read_text().splitlines()
    return [e for e in map(json.loads, lines) if e["kind"] in ("attempt_started", "resumed")]


def one_size(folder: Path, size_mb: int, above: float, steps: int) -> Iterator[str]:
    folder.mkdir(parents=True)
    (folder / "script.py").write_text(SCRIPT)
    plain_line = [sys.executable, "script.py", "plain.pt", str(size_mb), str(steps)]
    free = run_within(None, folder, plain_line)
    limit = int(free.peak_mb * 1e6 * (1.0 + above))
    yield f"{size_mb} MB of state: plain peak {free.peak_mb:.0f} MB, limit {limit / 1e6:.0f} MB"
    fault = f"faults=[{{kind: sigkill, step: {steps // 2}}}]"
    for kind in ("plain", "no_limit", "within", "killed"):
        line, told = plain_line, ""
        if kind != "plain":
            settings = ["checkpoint.every_steps=10", *([fault] if kind == "killed" else [])]
            line = supervised_line(size_mb, steps, kind, *settings)
        trial = run_within(None if kind == "no_limit" else limit, folder, line)
        if kind != "plain":
            events = attempts(folder, kind)
            exact = [e["exactness"] for e in events if e["kind"] == "resumed"]
            count = sum(e["kind"] == "attempt_started" for e in events)
            weights = (folder / f"{kind}.pt").exists() and same(folder, "plain", kind)
            told = f", {count} attempts, resumed {exact}, weights of plain: {weights}"
        yield (
            f"  {kind:9} code {trial.code}, peak {trial.peak_mb:.0f} MB, "
            f"{trial.kills} kills for memory{told}"
        )
        if trial.code:
            yield trial.output[-1500:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[50, 300])
    parser.add_argument("--above", type=float, default=0.2)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--keep", type=Path, help="a new folder for what the runs leave")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        for size in options.sizes:
            folder = (options.keep or Path(name)) / str(size)
            for line in one_size(folder, size, options.above, options.steps):
                print(line, flush=True)


if __name__ == "__main__":
    main()
