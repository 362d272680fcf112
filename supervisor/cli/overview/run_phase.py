"""What a run is doing now, from its journal: starting, fast-forwarding, training, stopping."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from supervisor.storage.run.rundir import RunDirectory

_MOMENTS = (
    *("attempt_started", "resumed", "restart", "worker_exited", "signal_received"),
    *("hang_detected", "gave_up", "run_finished"),
)
TRAINING = "training"
_COUNTER = struct.Struct("<Q")


def find_phase(
    rundir: RunDirectory, events: Sequence[Mapping[str, Any]], *, attempt: int, now_s: float
) -> str:
    """Returns a few words on a run that its supervisor has not ended.

    Args:
        rundir: the run.
        events: of its journal, in order.
        attempt: the last one that recorded a step, 0 for none.
        now_s: unix time.
    """
    event = next((e for e in reversed(events) if e.get("kind") in _MOMENTS), None)
    if event is None:
        return "starting"
    kind, age_s = event["kind"], max(0.0, now_s - unix_time(event.get("time")))
    if kind == "signal_received":
        left_s = max(0.0, _number(event.get("grace_s")) - age_s)
        return f"stopping ({event.get('name')}): saves and ends, killed in {left_s:.0f} s at most"
    if kind == "restart":
        left_s = max(0.0, _number(event.get("delay_s")) - age_s)
        return f"restarting: attempt {event.get('next_attempt')} in {left_s:.0f} s"
    if kind == "hang_detected":
        return "stopping a worker that hangs"
    if kind in ("worker_exited", "gave_up", "run_finished"):
        return "stopping: the worker has ended"
    if kind == "attempt_started" and attempt < _number(event.get("attempt")):
        return _beginning(rundir, event, age_s)
    return TRAINING


def _beginning(rundir: RunDirectory, event: Mapping[str, Any], age_s: float) -> str:
    target = event.get("checkpoint_step")
    if not isinstance(target, int):
        return f"starting, for {age_s:.0f} s"
    done = _replayed(rundir.root / "alive" / "rank_0.replay", unix_time(event.get("time")))
    if done is None:
        return f"restarting: goes back to step {target}, for {age_s:.0f} s"
    share = f" ({100 * done // target} %)" if target else ""
    return f"fast-forwarding: {min(done, target)} of {target} steps{share}, for {age_s:.0f} s"


def _replayed(path: Path, since_s: float) -> int | None:
    """Steps that the fast-forward of this attempt has done; None while there is none."""
    try:
        data = path.read_bytes()
        # A mapped file's time is not renewed by writing: it is that of the mapping, or later.
        fresh = path.stat().st_mtime >= since_s - 1.0
    except OSError:
        return None
    return int(_COUNTER.unpack(data)[0]) if fresh and len(data) == _COUNTER.size else None


def unix_time(text: Any) -> float:
    """Returns the time of an ISO 8601 text, 0 for anything else."""
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except (ValueError, OverflowError):
        return 0.0


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0
