"""How long a rollback stops the training, without and with the abandoned state kept on disk.

    python -m benchmarks.rollback_stall [--sizes 100 1200] [--rounds 5]

For each size (MB of a model and its two Adam moments) a snapshot is put back, alone and right after
the state was handed over to be written, in turn. Medians over the rounds; the first, which makes
its buffers, is left out.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.checkpoint import Ours, Training
from supervisor.settings import SnapshotSettings
from supervisor.training_state.snapshot import SnapshotRing
from supervisor.training_state.state import ROLLBACK_PARTS, is_finite
from supervisor.worker.checkpoints.checkpoint_writer import CapturedCheckpoint


def stalls_s(size_mb: int, rounds: int, folder: Path) -> tuple[float, float]:
    """Seconds of a rollback alone, and with the state kept."""
    training = Training(size_mb)
    saver = Ours(training, folder)
    snapshots = SnapshotRing(SnapshotSettings())
    snapshots.take(1, saver.state.capture(for_rollback=True), {})
    snapshot = snapshots.newest()
    assert snapshot is not None
    alone, kept = [], []
    for number in range(2, rounds + 3):
        for keeps in (False, True):
            training.step()
            started = time.perf_counter()
            if keeps:
                state = saver.state.capture()
                is_finite(state)
                saver.checkpointer.keep_abandoned(
                    CapturedCheckpoint(
                        step=number, state=state, meta={}, reason="benchmark", abandoned=True
                    )
                )
            saver.state.restore(snapshot.state, ROLLBACK_PARTS)
            (kept if keeps else alone).append(time.perf_counter() - started)
            while saver.checkpointer.is_busy:
                time.sleep(0.001)
    saver.checkpointer.close()
    return statistics.median(alone[1:]), statistics.median(kept[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1200])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print("MB      alone ms  state kept ms  ratio")
    for size in options.sizes:
        with tempfile.TemporaryDirectory() as folder:
            alone, kept = stalls_s(size, options.rounds, Path(folder))
        print(f"{size:<7d} {1e3 * alone:8.1f} {1e3 * kept:14.1f}  {kept / alone:5.2f}", flush=True)


if __name__ == "__main__":
    main()
