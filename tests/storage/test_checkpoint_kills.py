"""The same with a real process and a real SIGKILL."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from supervisor.settings import CheckpointSettings
from supervisor.storage.checkpoints.checkpoints import CheckpointRing

SAVE_LOOP = """
import sys
from pathlib import Path
from supervisor.settings import CheckpointSettings
from supervisor.storage.checkpoints.checkpoints import CheckpointRing

ring = CheckpointRing(Path(sys.argv[1]), CheckpointSettings(keep_last=2, min_free_gib=0.0))
newest = ring.newest_verified()
step = newest.step if newest else 0
while True:
    step += 1
    def write(folder):
        for name in "abc":
            (folder / name).write_bytes(f"{step} {name} ".encode() * 5000)
    ring.save(step, write, reason="interval", meta={})
    if step % 3 == 0:
        ring.mark_stable(step)
"""


def wait_for(condition, limit_s: float = 140.0) -> None:  # type: ignore[no-untyped-def]
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def newest_name(folder: Path) -> str:
    names = [path.name for path in folder.glob("step_*")] if folder.exists() else []
    return max(names, default="")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("delay_s", [0.0, 0.007])
def test_a_process_killed_in_a_save_loop_leaves_only_whole_checkpoints(
    delay_s: float, tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoints"
    for _ in range(2):
        before = newest_name(folder)
        process = subprocess.Popen([sys.executable, "-c", SAVE_LOOP, str(folder)])
        try:
            wait_for(lambda: newest_name(folder) > max(before, "step_00000004"))  # noqa: B023
            time.sleep(delay_s)
        finally:
            process.kill()
            process.wait()

        rejected: list[str] = []
        ring = CheckpointRing(folder, CheckpointSettings(keep_last=2, min_free_gib=0.0))
        ring.on_rejected = lambda checkpoint, why: rejected.append(why)  # noqa: B023
        for checkpoint in ring.checkpoints():
            ring.verify(checkpoint)
        newest, stable = ring.newest_verified(), ring.last_stable()
        assert newest is not None
        assert stable is not None
        assert rejected == []
        assert 0 < stable.step <= newest.step
    assert ring.sweep() <= 2
    assert list(folder.glob(".*")) == []
