"""What our hooks take of each step, measured in place, moment by moment.

    python -m benchmarks.hook_cost [--steps 2000] [--layers 2] [--batch 1] [--parts] [--json FILE]

The training of `timed_trainer` runs under supervision, and the monitor's moments are timed from
within, in CPU time: what they take beside the call of torch that they stand around. That leaves out
what the patched functions before them take, and what our memory does to the training's caches (see
`benchmarks.overhead` for the whole), and contains the stopwatch. No two processes are compared, so
only the machine's own speed moves it: compare shares of a step, or versions in turns. `typical` is
the median step; the mean holds what is done every few steps: judging, snapshots, saves.

`--parts` gives the CPU time of single parts instead, warm-up included: those that are called
now and then make up most of the difference between a typical and an average step.
"""

from __future__ import annotations

import argparse
import atexit
import importlib
import json
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TRAINER = Path(__file__).with_name("timed_trainer.py")
REGIONS = {"forward": 3, "backward": 1, "clip": 2}
"""Moment → place of the argument that is torch's own call."""
UPDATE = ("before_update", "after_update")
PARTS_IN_WORKER = "--parts-in-worker"
PARTS = (
    ("worker.core.parts", "Parts.at_boundary"),
    ("worker.live.snapshot_listener", "SnapshotListener.at_boundary"),
    ("worker.corruption.state_check", "StateCheck.compare"),
    ("training_state.snapshot", "SnapshotRing.take"),
    ("worker.live.parting_checkpoint", "PartingCheckpoint.at_boundary"),
    ("worker.live.checkpoint_listener", "CheckpointListener.at_boundary"),
    ("worker.capture.user_tensors", "UserTensors.find"),
    ("worker.capture.script_census", "ScriptCensus.packed"),
    ("worker.treatment.dispatcher", "Dispatcher.judge"),
    ("worker.live.step_recorder", "StepRecorder.record"),
    ("worker.live.step_recorder", "StepRecorder.begin_backward"),
    ("worker.live.step_recorder", "StepRecorder.finish"),
    ("worker.recording.random_states", "RngRecorder.before"),
    ("worker.recording.random_states", "RngRecorder.after"),
    ("worker.ground.unheld_values", "FunctionsUnderWay.any"),
    ("worker.ground.graphs_across", "GraphsAcross.watch"),
    ("worker.ground.graphs_across", "GraphsAcross.kept"),
)
"""Module and method; some lie within others."""
WARM_UP_STEPS = 256
COMMAND = ["-m", "supervisor.cli.main", "run", "--quiet", "--set", "report.enabled=false"]


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
        now, clock = time.thread_time_ns, self

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
        now, clock = time.thread_time_ns, self

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


def time_parts() -> dict[str, list[float]]:
    """Puts a stopwatch on each of `PARTS`; returns name → CPU seconds of its calls."""
    taken: dict[str, list[float]] = {}
    for module, called in PARTS:
        owner, _, name = called.partition(".")
        kind = getattr(importlib.import_module(f"supervisor.{module}"), owner)
        setattr(kind, name, _timed(getattr(kind, name), taken.setdefault(called, [])))
    return taken


def _timed(method: Callable[..., Any], taken: list[float]) -> Callable[..., Any]:
    def timed(*args: Any, **kwargs: Any) -> Any:
        began = time.thread_time()
        try:
            return method(*args, **kwargs)
        finally:
            taken.append(time.thread_time() - began)

    return timed


def train(out: str, arguments: list[str], *, parts: bool) -> None:
    """In the worker: the training, with the stopwatch on it."""
    import torch  # noqa: F401  (supervision begins with this import)

    from supervisor.worker.live import Live

    found: Any = time_parts() if parts else Stopwatch(Live).steps
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


def show_parts(taken: dict[str, list[float]], steps: int) -> None:
    print("part                             calls  us a call  us a step")
    for name, costs in sorted(taken.items(), key=lambda part: -sum(part[1])):
        total = 1e6 * sum(costs)
        each = total / max(1, len(costs))
        print(f"{name:32s} {len(costs):6d} {each:10.1f} {total / steps:10.1f}")


def main() -> None:
    if sys.argv[1:2] in (["--in-worker"], [PARTS_IN_WORKER]):
        train(sys.argv[2], sys.argv[3:], parts=sys.argv[1] == PARTS_IN_WORKER)
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--parts", action="store_true", help="CPU time of single parts")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.steps < 2 * WARM_UP_STEPS:
        parser.error(
            f"--steps {options.steps}: at least {2 * WARM_UP_STEPS}, as {WARM_UP_STEPS} warm up"
        )
    shape = options.steps, options.layers, options.batch
    if options.parts:
        show_parts(measure(*shape, way=PARTS_IN_WORKER)[0], options.steps)
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
