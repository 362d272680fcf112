"""The checks on a short run of the user's script."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from supervisor.analysis.doctor.machine import Check
from supervisor.analysis.trail import Mark
from supervisor.analysis.verify import Verification
from supervisor.events.state_events import CheckpointSaved, Resumed
from supervisor.held_memory import HeldMemory
from supervisor.settings import CheckpointSettings, RunSettings
from supervisor.storage.checkpoints.retention import most_kept

_WAIT_SHARE = 0.3
"""With a larger share of the step's time the loader limits the training."""
LONG_RUN = 100_000
"""Steps, for which the time of a resume is told."""
_HALF = ("float16", "bfloat16")
_MIB = float(1 << 20)


def check_losses(rows: np.ndarray) -> Check:
    """`rows`: of the flight recorder."""
    losses = rows["loss"]
    seen = int(np.count_nonzero(np.isfinite(losses)))
    name = "training"
    if seen == 0:
        detail = f"{len(rows)} steps, but no loss: call backward on a scalar, or use "
        return Check(name=name, ok=False, detail=f"{detail}supervisor.observe(loss=...)")
    detail = f"{len(rows)} steps, loss {losses[0]:.4g} to {losses[-1]:.4g}"
    return Check(name=name, ok=seen == len(rows), detail=detail)


def check_clipping(rows: np.ndarray, clips_at: float | None) -> Check:
    """Compares the script's own bound (None: it does not clip) with the norms seen."""
    name = "gradient clipping"
    norms = rows["grad_norm"][np.isfinite(rows["grad_norm"])]
    if not len(norms):
        return Check(name=name, ok=False, detail="no finite gradient norm was seen")
    usual, highest = float(np.median(norms)), float(norms.max())
    seen = f"norms: median {usual:.3g}, highest {highest:.3g}"
    if clips_at is None:
        detail = f"the script does not clip; {seen}"
        if highest > 10.0 * usual:
            detail += f": clip_grad_norm_(model.parameters(), {2.0 * usual:.2g}) tames the peaks"
        return Check(name=name, ok=highest <= 10.0 * usual, detail=detail)
    share = float(np.mean(norms > clips_at))
    detail = f"clips at {clips_at:g}, {share:.0%} of the steps; {seen}"
    if clips_at < 0.1 * usual:
        detail += ": the bound sets the step size, not the gradient: raise it, or lower both"
        return Check(name=name, ok=False, detail=detail)
    if math.isfinite(clips_at) and clips_at > 100.0 * highest:
        detail += f": the bound never acts: about {2.0 * usual:.2g} would"
        return Check(name=name, ok=False, detail=detail)
    return Check(name=name, ok=True, detail=detail)


def check_precision(facts: Mapping[str, Any]) -> Check:
    """Whether an FP32 fallback makes sense here, and is possible."""
    name = "precision fallback"
    half = [dtype for dtype in facts.get("dtypes", ()) if dtype in _HALF]
    if facts.get("uses_autocast"):
        return Check(name=name, ok=True, detail="available: autocast can be switched off")
    if half:
        return Check(name=name, ok=True, detail=f"available: {half[0]} weights become float32")
    return Check(name=name, ok=True, detail="not needed: the script trains in full precision")


def check_loader(marks: Sequence[Mark], rows: np.ndarray) -> Check:
    """Compares the time from an update to the next batch with the step time."""
    name = "data loader"
    waits = [mark.wait_s for mark in marks if mark.wait_s is not None]
    if not waits:
        return Check(name=name, ok=True, detail="the script uses no DataLoader")
    times = rows["step_time_s"][np.isfinite(rows["step_time_s"])]
    looking = median(mark.cost_s for mark in marks)
    step_s = max(float(np.median(times)) - looking, 1e-6) if len(times) else math.inf
    wait_s = median(waits)
    share = min(1.0, wait_s / step_s)
    detail = f"{wait_s * 1e3:.1f} ms of a step's {step_s * 1e3:.1f} ms are spent on the next batch"
    if share <= _WAIT_SHARE or wait_s < 2e-3:
        return Check(name=name, ok=True, detail=detail)
    return Check(name=name, ok=False, detail=f"{detail}: raise num_workers, or prefetch")


def check_replay(resumed: Sequence[Resumed]) -> Check:
    """How long a resume replays (events of one), and that of a long run. In so short a run batches
    are loaded that a long one may leave out."""
    name, found = "replay", [event.replayed_step_s for event in resumed]
    if not found or found[0] is None:
        return Check(name=name, ok=True, detail="no step was replayed")
    minutes = found[0] * LONG_RUN / 60
    detail = f"{found[0] * 1e3:.1f} ms a step: a resume at step {LONG_RUN:,} takes at most"
    return Check(name=name, ok=True, detail=f"{detail} {minutes:.1f} min and its start")


def check_signals(facts: Mapping[str, Any]) -> Check:
    """Who handles SIGTERM: the supervisor, or the script itself."""
    handler = str(facts.get("sigterm", ""))
    detail = "SIGTERM saves a checkpoint and ends the run"
    if handler:
        detail = (
            f"SIGTERM calls the script's own handler ({handler}); the supervisor's newest "
            "checkpoint is the one before it"
        )
    return Check(name="signals", ok=True, detail=detail)


def check_checkpoints(saved: Sequence[CheckpointSaved], folder: Path) -> Check:
    """Compares size and time of the checkpoints (events) with the disk under `folder`."""
    name = "checkpoints"
    if not saved:
        return Check(name=name, ok=False, detail="none was written: see the run's warnings")
    size = max(event.bytes or 0 for event in saved)
    seconds = median(event.seconds for event in saved)
    free = shutil.disk_usage(folder).free
    fits = free // max(1, size)
    detail = f"{size / _MIB:.2f} MiB each, {seconds:.2f} s; {min(fits, 999_999)} fit on the disk"
    kept = most_kept(CheckpointSettings())
    if fits < kept:
        detail += f": {kept} are kept at a time: make room"
    return Check(name=name, ok=fits >= kept, detail=detail)


def check_memory(
    saved: Sequence[CheckpointSaved], rows: np.ndarray, settings: RunSettings
) -> Check:
    """What a run will hold of its state, beside what the training took in its trial."""
    peaks = rows["memory_gib"][np.isfinite(rows["memory_gib"])]
    taken = int(peaks.max() * (1 << 30)) if len(peaks) else 0
    memory = HeldMemory(settings.snapshot, at_peak=lambda: taken)
    memory.has_trained = True
    size = max((event.bytes or 0 for event in saved), default=0)
    if size:
        memory.snapshots(size, len(settings.snapshot.depths) + 1)
    detail = memory.plan(most_kept(settings.checkpoint)) if size else "no state was saved"
    return Check(name="copies in memory", ok=True, detail=detail)


def check_exactness(found: Verification) -> Check:
    """What `verify` says."""
    if found.exact:
        detail = f"killed after step {found.break_at} and resumed: equal to the last bit"
        return Check(name="exact resume", ok=True, detail=detail)
    first = found.first_difference or {"what": "unknown", "name": "", "step": 0}
    where = f"{first['what']}: {first['name']}, after {first['step']} steps"
    return Check(name="exact resume", ok=False, detail=f"{where}: {found.advice}")
