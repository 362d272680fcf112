"""What our hooks take of each step, measured in place, moment by moment.

    python -m benchmarks.hook_cost [--steps 2000] [--layers 2] [--batch 1] [--subjects]

The training of `timed_trainer` runs under supervision, and the monitor's moments are timed from
within, in CPU time: what they take beside the call of torch that they stand around. That leaves out
what the patched functions before them take, and what our memory does to the training's caches (see
`benchmarks.overhead` for the whole), and contains the stopwatch. No two processes are compared, so
only the machine's own speed moves it: compare shares of a step, or versions in turns. `typical` is
the median step; the mean holds what is done every few steps: judging, snapshots, saves.

`--subjects` counts our Python calls of a calm step instead, by folder, and shares out their time by
a profiler that makes each call dearer; `--functions` by function.
"""

from __future__ import annotations

import argparse
import atexit
import cProfile
import itertools
import json
import pstats
import runpy
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

TRAINER = Path(__file__).with_name("timed_trainer.py")
REGIONS = {"forward": 3, "backward": 1, "clip": 2}
"""Moment → place of the argument that is torch's own call."""
UPDATE = ("before_update", "after_update")
PROFILED = "--profiled"
OURS = "/supervisor/"
WARM_UP_STEPS = 256
COMMAND = ["-m", "supervisor.cli.main", "run", "--quiet", "--set", "report.enabled=false"]


def unseen_clock() -> Callable[[], int]:
    """In the worker: CPU nanoseconds of a thread. What the script reads of `time` is recorded."""
    from supervisor.worker.outside_draws.outside_draws import RUNNING

    return RUNNING["thread_time"]


class Stopwatch:
    """Times the moments of the worker that it lives in, one dict of nanoseconds a step."""

    def __init__(self, monitor: type) -> None:
        self.steps: list[dict[str, int]] = []
        self._step: dict[str, int] = {}
        for name, place in REGIONS.items():
            setattr(monitor, name, self._region(name, getattr(monitor, name), place))
        for name in UPDATE:
            setattr(monitor, name, self._moment(name, getattr(monitor, name)))

    def _region(self, name: str, moment: Callable[..., Any], place: int) -> Callable[..., Any]:
        now, clock = unseen_clock(), self

        def timed(monitor: Any, *args: Any) -> Any:
            began = now()
            inside = [0]

            def call(*given: Any) -> Any:
                entered = now()
                result = args[place](*given)
                inside[0] = now() - entered
                return result

            result = moment(monitor, *args[:place], call, *args[place + 1 :])
            clock._add(name, now() - began - inside[0])
            return result

        return timed

    def _moment(self, name: str, moment: Callable[..., Any]) -> Callable[..., Any]:
        now, clock = unseen_clock(), self

        def timed(monitor: Any, *args: Any) -> Any:
            began = now()
            result = moment(monitor, *args)
            clock._add(name, now() - began)
            if name == UPDATE[-1]:
                clock.steps.append(clock._step)
                clock._step = {}
            return result

        return timed

    def _add(self, name: str, took: int) -> None:
        self._step[name] = self._step.get(name, 0) + took


def profile(live: type, steps: int) -> list[tuple[str, int, float]]:
    """Profiles the last `steps` updates that `WARM_UP_STEPS` leave, from within one to within
    another; returns, when the process ends, (file and function, calls, seconds of its own) of each
    function of ours: what it calls in torch and Python counts as its own."""
    profiler = cProfile.Profile(unseen_clock(), 1e-9)
    done, found = itertools.count(), []
    moment = live.after_update

    def after_update(self: Any, optimizer: Any, result: Any) -> Any:
        step = next(done)
        if step == steps - 1:
            profiler.disable()
            found.extend(own_costs(profiler))
        answer = moment(self, optimizer, result)
        if step == WARM_UP_STEPS - 1:
            profiler.enable()
        return answer

    live.after_update = after_update  # type: ignore[attr-defined]
    return found


def own_costs(profiler: cProfile.Profile) -> list[tuple[str, int, float]]:
    """Of a step's functions of ours, see `profile`."""
    costs: dict[str, list[float]] = {}
    for (file, _, name), (_, calls, own, _, callers) in pstats.Stats(profiler).stats.items():  # type: ignore[attr-defined]
        if OURS in file:
            cost = costs.setdefault(f"{file.split(OURS)[1]}:{name}", [0, 0.0])
            cost[0] += calls
            cost[1] += own
        elif file == "~":
            for (by, _, caller), (_, _, spent, _) in callers.items():
                if OURS in by:
                    costs.setdefault(f"{by.split(OURS)[1]}:{caller}", [0, 0.0])[1] += spent
    return [(name, int(calls), spent) for name, (calls, spent) in costs.items()]


def train(out: str, arguments: list[str], *, profiled: int) -> None:
    """In the worker: the training, with the stopwatch on it, or the profiler for so many steps."""
    import torch  # noqa: F401  (supervision begins with this import)

    from supervisor.worker.live import Live

    found: Any = profile(Live, profiled) if profiled else Stopwatch(Live).steps
    atexit.register(lambda: Path(out).write_text(json.dumps(found)))
    sys.argv = [str(TRAINER), *arguments]
    runpy.run_path(str(TRAINER), run_name="__main__")


def measure(
    steps: int, layers: int, batch: int, *, way: str = "--in-worker"
) -> tuple[Any, list[float]]:
    """What `train` has found, and the seconds that each step took."""
    with tempfile.TemporaryDirectory() as folder:
        hooks, times = Path(folder) / "hooks.json", Path(folder) / "times.json"
        line = [sys.executable, *COMMAND, "--run-dir", str(Path(folder) / "run"), __file__]
        line += [way, str(hooks), "--layers", str(layers), "--batch", str(batch)]
        line += ["--turn-steps", str(steps), "--out", str(times)]
        subprocess.run(line, check=True)
        return json.loads(hooks.read_text()), json.loads(times.read_text())[0][WARM_UP_STEPS:]


def show_subjects(costs: list[tuple[str, int, float]], steps: int, *, functions: bool) -> None:
    """A table of our calls and their time by folder, or by function."""
    rows: dict[str, list[float]] = {}
    for name, calls, spent in costs:
        row = rows.setdefault(name if functions else name.rpartition("/")[0] or name, [0, 0.0])
        row[0] += calls / steps
        row[1] += 1e6 * spent / steps
    rows["all"] = [sum(row[place] for row in rows.values()) for place in (0, 1)]
    print(f"{'subject':58s} calls a step  us a step, profiler included")
    for name, (called, took) in sorted(rows.items(), key=lambda row: -row[1][1]):
        if called >= 0.01 or took >= 0.1:
            print(f"{name:58s} {called:12.1f} {took:10.1f}")


def main() -> None:
    if sys.argv[1:2] in (["--in-worker"], [PROFILED]):
        steps = int(sys.argv[sys.argv.index("--turn-steps") + 1])
        train(sys.argv[2], sys.argv[3:], profiled=steps if sys.argv[1] == PROFILED else 0)
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--subjects", action="store_true", help="our calls and time by folder")
    parser.add_argument("--functions", action="store_true", help="the same by function")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.steps < 2 * WARM_UP_STEPS:
        parser.error(
            f"--steps {options.steps}: at least {2 * WARM_UP_STEPS}, as {WARM_UP_STEPS} warm up"
        )
    shape = options.steps, options.layers, options.batch
    if options.subjects or options.functions:
        calm = options.steps - WARM_UP_STEPS
        show_subjects(measure(*shape, way=PROFILED)[0], calm, functions=options.functions)
        return
    steps, times = measure(*shape)
    steps = steps[WARM_UP_STEPS:]
    step_us = 1e6 * statistics.median(times)
    rows = {name: [step.get(name, 0) / 1e3 for step in steps] for name in (*REGIONS, *UPDATE)} | {
        "all": [sum(step.values()) / 1e3 for step in steps]
    }
    table = {
        name: {"typical_us": statistics.median(row), "mean_us": statistics.fmean(row)}
        for name, row in rows.items()
    }
    print(f"{len(steps)} steps of {step_us / 1e3:.2f} ms\nmoment            typical      mean, us")
    for name, row in table.items():
        print(f"{name:14s} {row['typical_us']:10.1f} {row['mean_us']:9.1f}")
    total = table["all"]
    shares = (100.0 * total[name] / step_us for name in ("typical_us", "mean_us"))
    print("of a step:     {:8.1f} % {:7.1f} %".format(*shares))
    if options.json:
        options.json.write_text(json.dumps({"step_us": step_us, "moments": table}, indent=2))


if __name__ == "__main__":
    main()
