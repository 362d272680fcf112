"""Repeats captured steps and shows what made them anomalous."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from supervisor.analysis.analyze.statistics import (
    Analysis,
    Anomaly,
    Numbers,
    cause_of,
    numbers_at,
    statistics_at,
)
from supervisor.analysis.explain.finding import finding_of, first_of
from supervisor.analysis.explain.onset import healthy
from supervisor.analysis.explain.replay import (
    ReplayChange,
    ReplayedRun,
    ReplayRunner,
    remaining_s,
    replay_studio,
)
from supervisor.errors import SupervisorError, UsageError
from supervisor.events.event import of_kind
from supervisor.events.step_events import UpdateSkipped
from supervisor.ranks import FIRST_RANK
from supervisor.storage.checkpoints.checkpoints import Checkpoint, CheckpointRing
from supervisor.storage.evidence import Capture, CaptureStore
from supervisor.storage.files.private_files import write_json
from supervisor.storage.journal.journal import read_journal
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps.flight_reader import read_group_steps

if TYPE_CHECKING:
    from matplotlib.figure import Figure


BUDGET_S = 600.0
MIN_REPLAY_S = 5.0
MOST_ANOMALIES = 10
MOST_SEEDED = 2
OTHER_SEEDS = (1001, 1002, 1003)


def analyze(
    rundir: RunDirectory,
    *,
    step: int | None = None,
    visualize: bool = False,
    budget_s: float = BUDGET_S,
    say: Callable[[str], None] = lambda _: None,
) -> Analysis:
    """Repeats the captured steps of a run that has ended, and writes what it finds.

    ``anomalies/analysis`` of the run directory gets ``step_<n>.json`` and ``summary.json``, with
    `visualize` also ``overview.png`` and ``step_<n>_gradients.png``.

    Args:
        rundir: of the run.
        step: only this one, captured or not; None for the worst captured ones.
        visualize: draw pictures.
        budget_s: replays that cannot begin within this time are left out.
        say: called with progress.

    Raises:
        UsageError: there is no such step.
        SupervisorError: nothing was captured, a process is at work in the run, or no step could be
            repeated.
    """
    deadline = time.monotonic() + budget_s
    with replay_studio(rundir) as runner:
        rows = read_group_steps(rundir, runner.state.world_size, all_attempts=True)
        captures = CaptureStore(rundir, runner.settings.capture).captures()
        steps = _chosen(rundir, captures, step, rows)
        analysis = _Performance(rundir, runner, rows, captures, deadline, say).of(steps)
    if not analysis.anomalies:
        why = next(iter(analysis.left_out.values()), "the time was up")
        raise SupervisorError(f"{rundir.root}: no step could be repeated: {why}")
    _write(rundir, analysis, rows, visualize=visualize)
    return analysis


class _Performance:
    """Repeats some steps of a run."""

    def __init__(
        self,
        rundir: RunDirectory,
        runner: ReplayRunner,
        rows: np.ndarray,
        captures: Sequence[Capture],
        deadline: float,
        say: Callable[[str], None],
    ) -> None:
        self._rundir = rundir
        self._runner = runner
        self._rows = rows
        self._folders: dict[int, dict[str, str]] = {}  # step → rank → its captured batch
        for capture in captures:
            self._folders.setdefault(capture.step, {})[str(capture.rank)] = str(capture.path)
        self._deadline = deadline
        self._say = say
        self._ring = CheckpointRing(rundir.checkpoints, runner.settings.checkpoint)
        skipped = of_kind(read_journal(rundir.journal), UpdateSkipped)
        self._skipped = {event.step for event in skipped if event.step is not None}

    def of(self, steps: Sequence[int]) -> Analysis:
        found: list[Anomaly] = []
        left_out: dict[int, str] = {}
        for number, step in enumerate(steps):
            start = self._ring.newest_verified(before_step=step + 1)
            why = self._obstacle(step, start)
            replay = self._perform(step, start, None) if not why else None
            if replay is None or step not in replay.inspections[FIRST_RANK]:
                left_out[step] = why or "the replay did not reach it"
                self._say(f"step {step}: left out: {left_out[step]}")
                continue
            self._say(f"step {step}: repeated from step {start.step if start else 0}")
            seeds = OTHER_SEEDS if number < MOST_SEEDED or len(steps) == 1 else ()
            found.append(self._anomaly(step, replay, self._under_other_seeds(step, start, seeds)))
        return Analysis(anomalies=tuple(sorted(found, key=lambda a: a.step)), left_out=left_out)

    def _perform(self, step: int, start: Checkpoint | None, seed: int | None) -> ReplayedRun:
        experiment: dict[str, Any] = {"inspect": [step]}
        if step in self._folders:
            experiment["captures"] = {str(step): self._folders[step]}
        if seed is not None:
            experiment |= {"seed": seed, "seed_at": step, "inspect": []}
        change = ReplayChange(
            name="inspection" if seed is None else f"seed {seed}",
            skip_steps=tuple(sorted(s for s in self._skipped if s < step)),
            experiment=experiment,
        )
        timeout_s = remaining_s(self._deadline)
        return self._runner.replay(change, start, step + 1, timeout_s=timeout_s)

    def _under_other_seeds(
        self, step: int, start: Checkpoint | None, seeds: Sequence[int]
    ) -> dict[int, Numbers]:
        found: dict[int, Numbers] = {}
        for seed in seeds:
            if remaining_s(self._deadline) < MIN_REPLAY_S:
                break
            found[seed] = numbers_at(self._perform(step, start, seed).rows, step)
            self._say(f"step {step}: loss {found[seed].loss:.6g} with seed {seed}")
        return found

    def _obstacle(self, step: int, start: Checkpoint | None) -> str:
        if remaining_s(self._deadline) < MIN_REPLAY_S:
            return "the time is up"
        if start is None:
            times = healthy(self._rows, "step_time_s", step)
            way_s = float(np.median(times)) * step if len(times) else 0.0
            if way_s > remaining_s(self._deadline):
                return (
                    f"no checkpoint from before it is left, and from the start it is {way_s:.0f} s"
                )
        return ""

    def _anomaly(self, step: int, replay: ReplayedRun, others: dict[int, Numbers]) -> Anomaly:
        of_ranks = {rank: seen[step] for rank, seen in replay.inspections.items() if step in seen}
        first = first_of(
            {rank: finding_of({step: seen}, [step]) for rank, seen in of_ranks.items()}
        )
        seen = of_ranks[FIRST_RANK if first.rank is None else first.rank]
        original = numbers_at(self._rows, step)
        recomputed = numbers_at(replay.rows, step)
        statistics = statistics_at(self._rows, step)
        norms = {name: float(norm) for name, norm in seen["gradients"].items()}
        return Anomaly(
            step=step,
            original_loss=original.loss,
            recomputed_loss=recomputed.loss,
            gradients=dict(sorted(norms.items(), key=_largest_first)),
            activations=seen["activations"],
            other_seeds={seed: numbers.loss for seed, numbers in others.items()},
            same_batch=_all_same([one["same_batch"] for one in of_ranks.values()]),
            exact=replay.is_exact,
            rank=first.rank if first.detail else None,
            sample=seen["sample"],
            nonfinite=seen["nonfinite"],
            statistics=statistics,
            cause=cause_of(statistics, original, recomputed, list(others.values())),
            grad_norm=recomputed.grad_norm,
        )


def _chosen(
    rundir: RunDirectory, captures: Sequence[Capture], step: int | None, rows: np.ndarray
) -> list[int]:
    """Returns the steps to repeat, worst first."""
    worst = sorted(captures, key=lambda capture: -capture.badness)
    captured = list(dict.fromkeys(capture.step for capture in worst))
    if step is None:
        if not captured:
            raise SupervisorError(
                f"{rundir.captures}: no captured batch: nothing was anomalous, or capture.enabled "
                "was false; choose a step with --step"
            )
        return captured[:MOST_ANOMALIES]
    if step not in rows["step"]:
        known = ", ".join(map(str, sorted(captured))) or "none"
        raise UsageError(
            f"--step {step}: this run made no such step: captured are the steps {known}"
        )
    return [step]


def _write(rundir: RunDirectory, analysis: Analysis, rows: np.ndarray, *, visualize: bool) -> None:
    folder = rundir.make(rundir.captures.parent / "analysis")
    for anomaly in analysis.anomalies:
        write_json(folder / f"step_{anomaly.step}.json", asdict(anomaly))
    write_json(folder / "summary.json", analysis.to_dict() | {"left_out": analysis.left_out})
    if visualize:
        plot_overview(rows, analysis.anomalies, folder / "overview.png")
        for anomaly in analysis.anomalies:
            plot_gradients(anomaly, folder / f"step_{anomaly.step}_gradients.png")


def _largest_first(item: tuple[str, float]) -> float:
    return -item[1] if math.isfinite(item[1]) else -math.inf


def _all_same(told: Sequence[bool | None]) -> bool | None:
    """Whether all ranks have their captured batches; None where none was captured."""
    known = [is_same for is_same in told if is_same is not None]
    return all(known) if known else None


def plot_overview(rows: np.ndarray, anomalies: Sequence[Anomaly], path: Path) -> None:
    """Draws loss and gradient norm of the run with the anomalous steps marked.

    Raises:
        OSError: `path` cannot be written.
    """
    figure = _figure(9.0, 5.0)
    for place, (name, title) in enumerate((("loss", "loss"), ("grad_norm", "gradient norm"))):
        axes = figure.add_subplot(2, 1, place + 1)
        values = np.where(np.isfinite(rows[name]), rows[name], np.nan)
        axes.plot(rows["step"], values, linewidth=0.8, color="#444444")
        for anomaly in anomalies:
            axes.axvline(anomaly.step, color="#c0392b", linewidth=0.8, linestyle="--")
        if np.any(values > 0) and not np.any(values <= 0):
            axes.set_yscale("log")
        axes.set_ylabel(title)
    axes.set_xlabel("step")
    figure.suptitle(f"{len(anomalies)} anomalous steps")
    _save(figure, path)


def plot_gradients(anomaly: Anomaly, path: Path) -> None:
    """Draws the ten largest gradient norms of one step; those that are not finite as full bars.

    Raises:
        OSError: `path` cannot be written.
    """
    top = anomaly.top_gradients[::-1]
    finite = [gradient["norm"] for gradient in top if math.isfinite(gradient["norm"])]
    full = max(finite, default=1.0) or 1.0
    figure = _figure(8.0, 0.35 * len(top) + 1.4)
    axes = figure.add_subplot(1, 1, 1)
    for place, gradient in enumerate(top):
        norm = gradient["norm"]
        is_finite = math.isfinite(norm)
        color = "#2c6fbb" if is_finite else "#c0392b"
        axes.barh(place, norm if is_finite else full, color=color)
        axes.text(0, place, f" {norm:.3g}", va="center", fontsize=8)
    axes.set_yticks(range(len(top)), [gradient["name"] for gradient in top], fontsize=8)
    axes.set_xlabel("L2 norm of the gradient, before clipping")
    axes.set_title(f"step {anomaly.step}: loss {anomaly.recomputed_loss:.4g}")
    _save(figure, path)


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _save(figure: Figure, path: Path) -> None:
    figure.savefig(path, dpi=110)
    path.chmod(0o600)
