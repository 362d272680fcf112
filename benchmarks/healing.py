"""Random kills of ranks: are the weights those of an undisturbed run, and what does a kill cost?

``python -m benchmarks.healing [--kinds ddp fsdp2 zero1 groups] [--runs 2] [--kills 4]``: for each
kind one training without kills, then `runs` with `kills` random kills each, at random ranks, steps
and places within a step. ``--modes off healed standby`` kills at the same places without healing,
with it, and with a process that waits; ``--setup-s 20`` has the script sleep before it meets the
others. ``--kills 0 --modes off healed --width 512 --rows 512 --steps 300`` says what healing costs
a step of about 20 ms (median of the last third, CPU time of a rank and time on the clock).
Prints a line of JSON for each training, and a table; ``--json``: all as JSON at the end.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

SCRIPT = """
import ctypes, hashlib, json, os, time
import torch, torch.distributed as dist, torch.nn as nn, torch.nn.functional as F
time.sleep(float(os.environ["SETUP_S"]))
dist.init_process_group("gloo")
rank, world, kind = dist.get_rank(), dist.get_world_size(), os.environ["KIND"]
kills = [k.split(":") for k in os.environ["KILLS"].split(",") if k]
def here(step, place):
    for r, s, p in kills:
        flag = f"{os.environ['FLAGS']}/{r}_{s}_{p}"
        if (int(r), int(s), p) == (rank, step, place) and not os.path.exists(flag):
            mark(flag)
            os.kill(os.getpid(), 9)
def mark(path):  # no file of the script's; only the first time
    os.close(libc.open(path.encode(), os.O_CREAT | os.O_APPEND, 0o644))
libc = ctypes.CDLL(None)
torch.manual_seed(rank)
draw = torch.Generator().manual_seed(100 + rank)
wide = int(os.environ["WIDTH"])
layers = [nn.Linear(64, wide), nn.LayerNorm(wide), nn.ReLU(), nn.Dropout(0.1)]
model = nn.Sequential(*layers, nn.Linear(wide, wide), nn.ReLU(), nn.Linear(wide, 8))
groups = [None]
if kind == "groups":
    groups = [dist.new_group([0, 1]), dist.new_group(list(range(world)))]
if kind == "fsdp2":
    from torch.distributed.fsdp import fully_shard
    for part in (model[0], model[4], model): fully_shard(part)
else:
    model = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.1)
if kind == "zero1":
    from torch.distributed.optim import ZeroRedundancyOptimizer
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)
else:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
losses, took_s, rows = [], [], int(os.environ["ROWS"])
for step in range(int(os.environ["STEPS"])):
    began = time.process_time(), time.perf_counter()
    x, y = torch.randn(rows, 64, generator=draw), torch.randn(rows, 8, generator=draw)
    here(step, "begin")
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), y)
    here(step, "forward")
    loss.backward()
    here(step, "backward")
    optimizer.step()
    here(step, "update")
    mean = loss.detach().clone()
    for group in groups:
        if group is None or rank in dist.get_process_group_ranks(group):
            dist.all_reduce(mean, group=group)
    losses.append(mean.item())
    took_s.append((time.process_time() - began[0], time.perf_counter() - began[1]))
    if any(step == int(s) for _, s, _ in kills):
        mark(f"{os.environ['FLAGS']}/made_{step}_{rank}")
    time.sleep(0.02)
states = [v for s in optimizer.state.values() for v in s.values() if torch.is_tensor(v)]
def digest(data):
    return hashlib.sha256(data).hexdigest()[:12]
held = [t.to_local() if hasattr(t, "to_local") else t for t in model.state_dict().values()]
held += [t.to_local() if hasattr(t, "to_local") else t for t in states]
weights = b"".join(t.detach().numpy().tobytes() for t in held)
with open(f"{os.environ['FLAGS']}/out_{rank}", "w") as file:
    late = [sorted(each) for each in zip(*took_s[-len(took_s) // 3 :])]
    typical = [each[len(each) // 2] for each in late]
    told = [digest(weights), digest(repr(losses).encode()), *typical]
    json.dump(told, file)
dist.barrier()
"""
PLACES = ("begin", "forward", "backward", "update")
BACK = re.compile(r"rank \d+ is back after ([\d.]+) s")
SETTINGS = {
    "off": [],
    "healed": ["restart.healing=on"],
    "standby": ["restart.healing=on", "restart.standby=true"],
}
"""Of each mode."""


def train(
    kind: str,
    ranks: int,
    kills: list[str],
    folder: Path,
    mode: str,
    setup_s: float,
    sizes: dict[str, str],
) -> dict[str, Any]:
    """Returns the digests of each rank, how long each killed step took to be made by all, and what
    the terminal said of healing."""
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    environment = {**os.environ, "KIND": kind, "KILLS": ",".join(kills), "FLAGS": str(folder)}
    environment |= {"SETUP_S": str(setup_s), **sizes}
    command = [str(Path(sys.executable).with_name("supervisor")), "run"]
    command += ["--run-dir", str(folder / "run")]
    for setting in [*SETTINGS[mode], "restart.crash_limit=9"]:
        command += ["--set", setting]
    command += ["--nproc-per-node", str(ranks), str(folder / "train.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1800)
    said = done.stdout + done.stderr
    found = [folder / f"out_{rank}" for rank in range(ranks)]
    ends = [json.loads(path.read_text()) if path.exists() else None for path in found]
    return {
        "digests": [None if end is None else end[:2] for end in ends],
        "cpu_ms": [None if end is None else round(1000 * end[2], 2) for end in ends],
        "clock_ms": [None if end is None else round(1000 * end[3], 2) for end in ends],
        "next_step_s": [until_made(folder, kill, ranks) for kill in kills],
        "healed_s": [float(second) for second in BACK.findall(said)],
        "declined": [line for line in said.splitlines() if "all ranks start again" in line],
        "code": done.returncode,
    }


def until_made(folder: Path, kill: str, ranks: int) -> float | None:
    """Returns the seconds from a kill until all ranks have made that step; None if one has not."""
    killed = folder / kill.replace(":", "_")
    made = [folder / f"made_{kill.split(':')[1]}_{rank}" for rank in range(ranks)]
    if not all(path.exists() for path in (killed, *made)):
        return None
    return round(max(path.stat().st_mtime for path in made) - killed.stat().st_mtime, 2)


def main(arguments: list[str] | None = None) -> int:
    """Returns 1 if the weights of a disturbed training were others."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", nargs="+", default=["ddp", "fsdp2", "zero1", "groups"])
    parser.add_argument("--modes", nargs="+", default=["healed"], choices=SETTINGS)
    parser.add_argument("--setup-s", type=float, default=0.0)
    parser.add_argument("--width", type=int, default=256, help="of the layers")
    parser.add_argument("--rows", type=int, default=32, help="of a batch")
    parser.add_argument("--steps", type=int, default=60, help="kills are within the first 58")
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--kills", type=int, default=4)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    sizes = {name.upper(): str(getattr(given, name)) for name in ("width", "rows", "steps")}
    draw, table = random.Random(given.seed), []
    with tempfile.TemporaryDirectory() as place:
        for kind in given.kinds:
            folder = Path(place) / f"{kind}_plain"
            plain = train(kind, given.ranks, [], folder, "off", 0.0, sizes)
            for number in range(given.runs):
                steps = sorted(draw.sample(range(12, 58), given.kills))
                kills = [f"{draw.randrange(given.ranks)}:{s}:{draw.choice(PLACES)}" for s in steps]
                for mode in given.modes:
                    folder = Path(place) / f"{kind}_{number}_{mode}"
                    more = (folder, mode, given.setup_s, sizes)
                    found = train(kind, given.ranks, kills, *more)
                    same = found["digests"] == plain["digests"] and None not in found["digests"]
                    names = {"kind": kind, "mode": mode, "kills": kills, "same": same}
                    table.append(names | found)
                    print(json.dumps(table[-1]), flush=True)
    print(tell(table))
    if given.json:
        print(json.dumps(table))
    return int(not all(row["same"] for row in table))


def tell(table: list[dict[str, Any]]) -> str:
    """Returns the table, a line for each kind and mode; seconds are from a kill until all ranks
    have made the killed step."""
    lines = [
        "kind     mode     kills healed restarts  same  median  worst s  ms a step: CPU  clock"
    ]
    for kind, mode in dict.fromkeys((row["kind"], row["mode"]) for row in table):
        rows = [row for row in table if (row["kind"], row["mode"]) == (kind, mode)]
        kills, healed, declined = (
            sum(len(row[name]) for row in rows) for name in ("kills", "healed_s", "declined")
        )
        same = f"{sum(row['same'] for row in rows)}/{len(rows)}"
        took = sorted(s for row in rows for s in row["next_step_s"] if s is not None) or [math.nan]
        lines.append(
            f"{kind:8} {mode:8} {kills:5} {healed:6} {declined:8} {same:>5} "
            f"{took[len(took) // 2]:7.1f} {took[-1]:8.1f} {_typical(rows, 'cpu_ms'):14.2f} "
            f"{_typical(rows, 'clock_ms'):6.1f}"
        )
    return "\n".join(lines)


def _typical(rows: list[dict[str, Any]], what: str) -> float:
    """The median over ranks and trainings of their median step."""
    known = sorted(ms for row in rows for ms in row[what] if ms is not None)
    return known[len(known) // 2] if known else math.nan


if __name__ == "__main__":
    sys.exit(main())
