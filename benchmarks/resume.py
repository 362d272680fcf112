"""How long a killed training stands still, and what a fast-forwarded step costs.

    python -m benchmarks.resume [--kills 500 2000] [--long] [--load-ms 20]
                                [--loaders] [--rounds 3] [--json FILE]

The same script is killed with SIGKILL under `supervisor run`, and run by hand with checkpoints of
its own, started again at once. Both save every 100 steps and are killed 50 steps after a save.
`to a new step` is the time from the kill until the first step that is trained again has ended,
`to beyond` until the first step that had not been trained before; the rest says where the time
goes. The supervisor's time holds its wait before a restart (about a second by default), which
guards against a loop of crashes. Medians over the rounds; killed and new times are stamped by the
script itself, with the steps that are replayed. With `--load-ms` every sample takes so long to load
(two a batch, killed after 200 steps), and the fast-forward is measured with all of them
loaded (`fast_forward.skip_loading=false`) and as it is by itself. `--loaders` takes the
ways to load of `loading_trainer`: 20 ms a batch, killed at step 275 of 300, resumed at 270.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path

from benchmarks.loading_trainer import KINDS
from benchmarks.restartable_trainer import SAVE_EVERY

TRAINER = Path(__file__).with_name("restartable_trainer.py")
KILLS = (500, 2000)
LONG = 10_000
LOADING_KILL = 200
LOADING_TRAINER = Path(__file__).with_name("loading_trainer.py")
LATER = 50
Figures = dict[str, float]


@dataclass(frozen=True)
class Stamp:
    """The end of one step in one process."""

    process: int
    step: int
    time: float


def read_stamps(folder: Path) -> list[Stamp]:
    lines = [line.split() for line in (folder / "stamps").read_text().splitlines()]
    return [Stamp(int(process), int(step), float(time)) for process, step, time in lines]


def split(stamps: list[Stamp]) -> tuple[list[Stamp], list[Stamp]]:
    """Stamps of the process that was killed, and of the one after it."""
    killed = [stamp for stamp in stamps if stamp.process == stamps[0].process]
    return killed, [stamp for stamp in stamps if stamp.process != stamps[0].process]


def step_s(stamps: list[Stamp]) -> float:
    """Median time between the ends of two steps."""
    return statistics.median(b.time - a.time for a, b in pairwise(stamps))


def seconds(event: dict[str, str]) -> float:
    return datetime.fromisoformat(event["time"]).timestamp()


def script_line(kill_at: int, *more: str) -> list[str]:
    return [str(TRAINER), "--kill-at", str(kill_at), "--steps", str(kill_at + LATER), *more]


def supervised(kill_at: int, folder: Path, settings: Sequence[str] = (), *more: str) -> Figures:
    line = [sys.executable, "-m", "supervisor.cli.main", "run", "--quiet", "--run-dir", "run"]
    line += ["--set", "report.enabled=false", "--set", f"checkpoint.every_steps={SAVE_EVERY}"]
    for setting in settings:
        line += ["--set", setting]
    run(line + script_line(kill_at, *more), folder)
    events = [json.loads(line) for line in (folder / "run/events.jsonl").read_text().splitlines()]
    resumed = [event for event in events if event["kind"] == "resumed"]
    if [event["exactness"] for event in resumed] != ["exact"]:
        raise SystemExit(f"resume: not one exact resume but {resumed}")
    arrived = seconds(resumed[0])
    started = max(seconds(event) for event in events if event["kind"] == "attempt_started")
    killed, after = split(read_stamps(folder))
    replayed = [stamp for stamp in after if stamp.time <= arrived]
    live = [stamp for stamp in after if stamp.time > arrived]
    fast_s = (replayed[-1].time - replayed[0].time) / (len(replayed) - 1)
    return {
        "new_step_s": live[0].time - killed[-1].time,
        "beyond_s": next(s for s in live if s.step > kill_at).time - killed[-1].time,
        "wait_s": started - killed[-1].time,
        "start_s": replayed[0].time - started,
        "fast_forward_s": arrived - replayed[0].time,
        "fast_step_ms": 1000 * fast_s,
        "step_ms": 1000 * step_s(killed),
        "share": fast_s / step_s(killed),
    }


def by_hand(kill_at: int, folder: Path) -> Figures:
    line = [sys.executable, *script_line(kill_at, "--own-checkpoints")]
    subprocess.run(line, cwd=folder, capture_output=True)
    run(line, folder)
    killed, after = split(read_stamps(folder))
    return {
        "new_step_s": after[0].time - killed[-1].time,
        "beyond_s": next(s for s in after if s.step > kill_at).time - killed[-1].time,
        "step_ms": 1000 * step_s(killed),
    }


def run(line: list[str], folder: Path) -> None:
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"resume: {line} ended with {done.returncode}:\n{done.stderr}")


def measure(kill_after: int, rounds: int) -> dict[str, object]:
    """Medians over the rounds, both ways in turn."""
    kill_at = kill_after + SAVE_EVERY // 2
    taken: dict[str, list[Figures]] = {"supervised": [], "by_hand": []}
    for _ in range(rounds):
        for name, way in (("supervised", supervised), ("by_hand", by_hand)):
            with tempfile.TemporaryDirectory() as folder:
                taken[name].append(way(kill_at, Path(folder)))
    medians = {
        name: {key: statistics.median(found[key] for found in all_found) for key in all_found[0]}
        for name, all_found in taken.items()
    }
    return {"kill_after": kill_after, **medians}


def measure_loading(load_ms: float) -> list[dict[str, object]]:
    """One round with all loading and one as it is by itself."""
    rows: list[dict[str, object]] = []
    for skip in ("false", "null"):
        with tempfile.TemporaryDirectory() as folder:
            settings = [f"fast_forward.skip_loading={skip}"]
            more = ("--batch", "2", "--load-ms", str(load_ms))
            found = supervised(LOADING_KILL + SAVE_EVERY // 2, Path(folder), settings, *more)
        rows.append({"load_ms": load_ms, "skip_loading": skip, "supervised": found})
        print(
            f"samples of {load_ms:g} ms, skip_loading={skip}: fast-forward of {LOADING_KILL} steps "
            f"{found['fast_forward_s']:.2f} s, {found['fast_step_ms']:.2f} ms a step "
            f"(a real one {found['step_ms']:.1f} ms)",
            flush=True,
        )
    return rows


def measure_loaders() -> list[dict[str, object]]:
    """One round of each way to load."""
    rows: list[dict[str, object]] = []
    print("way to load         270 steps (s)   start-up (s)   resume behind it (s)   left out")
    for kind in KINDS:
        found = one_loader(kind)
        rows.append({"kind": kind, **found})
        print(
            f"{kind:18}  {found['steps_s']:13.1f}  {found['start_s']:13.1f}"
            f"  {found['behind_s']:21.1f}  {found['left_out']:5.0f} of 270",
            flush=True,
        )
    return rows


def one_loader(kind: str) -> Figures:
    """Start-up is that of the first attempt; what the resume takes longer is for the replay."""
    line = [sys.executable, "-m", "supervisor.cli.main", "run", "--quiet", "--run-dir", "run"]
    for setting in ("report.enabled=false", "checkpoint.every_steps=30"):
        line += ["--set", setting]
    line += ["--set", "checkpoint.background=false"]
    line += ["--set", "faults=[{kind: sigkill, step: 275}]"]
    script = [str(LOADING_TRAINER), "--kind", kind, "--steps", "300"]
    with tempfile.TemporaryDirectory() as name:
        run(line + script, Path(name))
        journal = (Path(name) / "run/events.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in journal]
    (resumed,) = [event for event in events if event["kind"] == "resumed"]
    if (resumed["exactness"], resumed["from_step"]) != ("exact", 270):
        raise SystemExit(f"resume: {kind}: not an exact resume at step 270 but {resumed}")
    began = [seconds(event) for event in events if event["kind"] == "attempt_started"]
    saved = {e["step"]: seconds(e) for e in reversed(events) if e["kind"] == "checkpoint_saved"}
    step_s = (saved[270] - saved[30]) / 240
    start_s = saved[30] - 30 * step_s - began[0]
    return {
        "steps_s": 270 * step_s,
        "start_s": start_s,
        "behind_s": seconds(resumed) - began[1] - start_s,
        "left_out": float(resumed["batches_left_out"]),
    }


def show(row: dict[str, object]) -> None:
    ours, own = row["supervised"], row["by_hand"]
    assert isinstance(ours, dict)
    assert isinstance(own, dict)
    print(
        f"{row['kill_after']:>6}  {ours['new_step_s']:9.2f} {own['new_step_s']:8.2f}"
        f"  {ours['beyond_s']:9.2f} {own['beyond_s']:8.2f}"
        f"  {ours['wait_s']:5.2f} {ours['start_s']:6.2f} {ours['fast_forward_s']:8.2f}"
        f"  {ours['fast_step_ms']:6.2f} of {ours['step_ms']:5.2f} ms = {100 * ours['share']:.0f} %",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, nargs="*", default=list(KILLS), metavar="STEP")
    parser.add_argument("--long", action="store_true", help=f"kill after {LONG} steps too")
    parser.add_argument("--load-ms", type=float, metavar="MS")
    parser.add_argument("--loaders", action="store_true", help="each way to load")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print("killed  to a new step (s)   to beyond (s)      of it (s): wait, start, fast-forward")
    print(" after  supervised  by hand  superv.  by hand   a fast-forwarded step of a real one")
    rows: list[dict[str, object]] = []
    for kill_after in [*options.kills, *([LONG] if options.long else [])]:
        rows.append(measure(kill_after, options.rounds))
        show(rows[-1])
    if options.load_ms:
        rows += measure_loading(options.load_ms)
    if options.loaders:
        rows += measure_loaders()
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
