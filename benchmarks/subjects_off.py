"""What each subject of supervision takes of a calm step: each is off in turn, in one training.

    python -m benchmarks.subjects_off [--tensors 2 50 500 5000] [--pairs 48] [--json FILE]

The training of `many_tensors_trainer` runs under supervision. Short turns in which all is on and in
which one subject's moments do nothing follow each other in one process, so that the machine's speed
moves both alike; a figure is the difference of the lower quartiles of the turns' means. `hooks` is
CPU time of the monitor's moments (as `benchmarks.hook_cost` times them), `step` that of the whole
step, with what is patched outside of the moments; `calls` are Python functions of ours in a step.
What is done every few hundred steps (snapshots, saves, looks inside the model) is in no calm turn.
"""

from __future__ import annotations

import argparse
import atexit
import json
import math
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.hook_cost import COMMAND, OURS, WARM_UP_STEPS, Stopwatch, unseen_clock

TRAINER = Path(__file__).with_name("many_tensors_trainer.py")
IN_WORKER = "--in-worker"
COUNTED = 5
"""Pairs of turns in which calls are counted and no time is taken."""
AT_BOUNDARIES = ("snapshots", "checkpoints")
SUBJECTS = (
    *("random states", "reads and clocks", "census", "judging", "probes", "batches", "norm"),
    *("replay log", "recorder", "corruption", "script's changes", "signs of life", "mistakes"),
    *AT_BOUNDARIES,
)
Change = tuple[Any, str, Any]
"""Whose attribute, its name, and what stands there while the subject is off."""


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Takes the place of a moment."""


def _none_due(*args: Any, **kwargs: Any) -> tuple[float, float]:
    return math.inf, math.inf


def _empty(*args: Any, **kwargs: Any) -> dict[str, Any]:
    return {}


def _no(*args: Any, **kwargs: Any) -> bool:
    return False


def steps_of(subject: str) -> int:
    """Of a turn: calm steps are judged together, 32 at once."""
    return 32 if subject == "judging" else 4


def subjects() -> dict[str, list[Change]]:
    """In the worker, when torch is there: subject → what is replaced while it is off."""
    from supervisor.storage.steps.flight_recorder import FlightRecorder
    from supervisor.storage.steps.replay_log import ReplayLogWriter
    from supervisor.worker.checkpoints.checkpoint_listener import CheckpointListener
    from supervisor.worker.checkpoints.snapshot_listener import SnapshotListener
    from supervisor.worker.core.process_signs import Heartbeat
    from supervisor.worker.corruption.corruption_listener import CorruptionListener
    from supervisor.worker.corruption.update_watch import UpdateWatch
    from supervisor.worker.judging.step_judge import StepJudge
    from supervisor.worker.mistakes.watch import MistakeWatch
    from supervisor.worker.outside_draws.outside_draws import RUNNING
    from supervisor.worker.probes.probes import Probes
    from supervisor.worker.random_state.random_states import RngRecorder
    from supervisor.worker.script_state.script_state import ScriptStatePart
    from supervisor.worker.step_record.input_watch import InputWatch
    from supervisor.worker.step_record.script_changes import ScriptChanges
    from supervisor.worker.step_record.step_recorder import StepRecorder

    def off(owner: type, *names: str, give: Callable[..., Any] = _nothing) -> list[Change]:
        return [(owner, name, give) for name in names]

    clock = RUNNING["process_time"]
    reads: list[Change] = [(time, "process_time", lambda: clock() / 1e9)]
    for name, module in list(sys.modules.items()):
        patched = vars(module).get("_get_value") if name.startswith("torch.optim.") else None
        if patched is not None:
            reads.append((module, "_get_value", getattr(patched, "__wrapped__", patched)))
    return {
        "random states": [
            *off(RngRecorder, "before", "read", give=lambda recorder: ()),
            *off(RngRecorder, "after", "after_backward"),
        ],
        "reads and clocks": reads,
        "census": off(ScriptStatePart, "save"),
        "judging": off(StepJudge, "judge", give=_no),
        "probes": off(Probes, "start"),
        "batches": off(InputWatch, "saw") + off(InputWatch, "judge", give=_empty),
        "norm": [
            *off(StepRecorder, "clipped"),
            *off(
                StepRecorder,
                "see_gradients",
                give=lambda steps, main, scale=1.0: steps._update_controls.parameters(main),
            ),
        ],
        "replay log": off(ReplayLogWriter, "append", "append_step", "insert"),
        "recorder": [
            *off(FlightRecorder, "append", give=lambda recorder, *_, **__: recorder.rows - 1),
            *off(FlightRecorder, "mark_risk"),
        ],
        "corruption": [
            *off(UpdateWatch, "update_begins", "update_ended", "clipped"),
            *off(CorruptionListener, "check", give=lambda listener, step: True),
        ],
        "script's changes": off(ScriptChanges, "judge", give=_empty),
        "signs of life": off(Heartbeat, "beat"),
        "mistakes": off(
            MistakeWatch, "forward", "backward", "before_update", "updated", "forward_ended"
        ),
        "snapshots": [
            *off(SnapshotListener, "at_boundary"),
            *off(SnapshotListener, "next_boundary", give=_none_due),
        ],
        "checkpoints": [
            *off(CheckpointListener, "at_boundary"),
            *off(CheckpointListener, "next_boundary", give=_none_due),
        ],
    }


class Turns:
    """Switches subjects off and on again between the steps of the worker that it lives in.

    Attributes:
        found: per turn: the subject that is on or off, whether it is off, and per step hook
            microseconds, step microseconds and calls; the latter 0 where time was taken, and the
            former 0 where calls were counted.
    """

    def __init__(self, live: type, pairs: int) -> None:
        self.found: list[tuple[str, bool, float, float, float]] = []
        self._watch = Stopwatch(live)
        self._plan = self._all_turns(pairs)
        self._now, self._calls = unseen_clock(), 0
        moment = live.after_update  # type: ignore[attr-defined]

        def after_update(monitor: Any, optimizer: Any, result: Any) -> Any:
            answer = moment(monitor, optimizer, result)
            if next(self._plan, False):
                monitor.schedule.ask()  # whoever was off is asked again
            return answer

        live.after_update = after_update  # type: ignore[attr-defined]

    def _all_turns(self, pairs: int) -> Iterator[bool]:
        """Advanced after each update; True where parts of the boundary were switched."""
        for _ in range(WARM_UP_STEPS):
            yield False
        for subject, changes in subjects().items():
            steps, asks = steps_of(subject), subject in AT_BOUNDARIES
            for counts in [False] * pairs + [True] * COUNTED:
                yield from self._turn(subject, steps, is_off=False, asks=asks, counts=counts)
                was = [vars(owner)[name] for owner, name, _ in changes]
                for owner, name, instead in changes:
                    setattr(owner, name, instead)
                yield from self._turn(subject, steps, is_off=True, asks=asks, counts=counts)
                for (owner, name, _), original in zip(changes, was, strict=True):
                    setattr(owner, name, original)

    def _turn(
        self, subject: str, steps: int, *, is_off: bool, asks: bool, counts: bool
    ) -> Iterator[bool]:
        yield asks  # the first step holds what the switch has brought
        self._watch.steps.clear()
        self._calls, began = 0, self._now()
        if counts:
            sys.setprofile(self._count)
        for _ in range(steps):
            yield False
        if counts:
            sys.setprofile(None)
            self.found.append((subject, is_off, 0.0, 0.0, self._calls / steps))
            return
        whole = (self._now() - began) / 1e3
        hooks = sum(sum(step.values()) for step in self._watch.steps) / 1e3
        self.found.append((subject, is_off, hooks / steps, whole / steps, 0.0))

    def _count(self, frame: FrameType, event: str, _: Any) -> None:
        self._calls += event == "call" and OURS in frame.f_code.co_filename


def train(out: str, pairs: int, arguments: list[str]) -> None:
    """In the worker: the training, with subjects going off and on."""
    import torch  # noqa: F401  (supervision begins with this import)

    from supervisor.worker.live import Live

    turns = Turns(Live, pairs)
    atexit.register(lambda: Path(out).write_text(json.dumps(turns.found)))
    sys.argv = [str(TRAINER), *arguments]
    runpy.run_path(str(TRAINER), run_name="__main__")


def measure(tensors: int, pairs: int) -> dict[str, dict[str, float]]:
    """Subject → what it takes of a calm step: `hooks_us`, `step_us`, `calls`."""
    turns = sum(2 * (1 + steps_of(subject)) for subject in SUBJECTS)
    count = WARM_UP_STEPS + (pairs + COUNTED) * turns
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        line = [sys.executable, *COMMAND, "--run-dir", str(Path(folder) / "run"), __file__]
        line += [IN_WORKER, str(out), str(pairs), "--clip", "--turns", "1"]
        line += ["--tensors", str(tensors), "--used", str(tensors), "--turn-steps", str(count)]
        subprocess.run([*line, "--out", str(Path(folder) / "times.json")], check=True)
        return table(json.loads(out.read_text()))


def table(found: list[Any]) -> dict[str, dict[str, float]]:
    """What the calm turns with all on take, less those with the subject off; of `all` what those
    that hold a round of judging take."""
    rows = {}
    for subject in ("all", *SUBJECTS):
        row = rows[subject] = {"hooks_us": 0.0, "step_us": 0.0, "calls": 0.0}
        for place, name in enumerate(row, 2):
            for is_off in (False,) if subject == "all" else (False, True):
                like = ["judging" if subject == "all" else subject, is_off]
                took = [turn[place] for turn in found if turn[:2] == like and turn[place]]
                calm = min(took) if name == "calls" else statistics.quantiles(took, n=4)[0]
                row[name] += -calm if is_off else calm
    return rows


def main() -> None:
    if sys.argv[1:2] == [IN_WORKER]:
        train(sys.argv[2], int(sys.argv[3]), sys.argv[4:])
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tensors", type=int, nargs="+", default=[2, 50, 500, 5000])
    parser.add_argument("--pairs", type=int, default=48)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    tables = {}
    for tensors in options.tensors:
        tables[tensors] = rows = measure(tensors, options.pairs)
        print(f"{tensors} tensors, us of CPU time a step and calls")
        print(f"{'subject':18s} {'hooks':>8s} {'step':>8s} {'calls':>8s}")
        for subject, row in sorted(rows.items(), key=lambda one: -one[1]["hooks_us"]):
            figures = (row[name] for name in ("hooks_us", "step_us", "calls"))
            print(f"{subject:18s} " + " ".join(f"{figure:8.1f}" for figure in figures))
    if options.json:
        options.json.write_text(json.dumps(tables, indent=2))


if __name__ == "__main__":
    main()
