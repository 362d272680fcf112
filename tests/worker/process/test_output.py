"""What the process says is not said again, and nothing of it is lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HELD = """
import os, sys
from pathlib import Path
from supervisor.worker.process.output import Silence
silence = Silence()
silence.start()
print("in the replay")
silence.hold(Path(sys.argv[1]))
for step in (7, 8, 9):
    print("step", step)
os.system("echo of another process; echo an error >&2")
silence.stop()
silence.stop()
print("afterwards")
"""


def test_what_a_dead_rank_had_not_said_yet_is_told(tmp_path: Path) -> None:
    log = tmp_path / "rank_0.log"
    log.write_text("step 6\nstep 7\nstep 8\n")

    line = [sys.executable, "-c", HELD, str(log)]
    ended = subprocess.run(line, capture_output=True, text=True, timeout=60, check=True)

    assert ended.stdout.splitlines() == ["step 9", "of another process", "afterwards"]
    assert ended.stderr == "an error\n"


def test_without_the_dead_ranks_log_all_is_told(tmp_path: Path) -> None:
    line = [sys.executable, "-c", HELD, str(tmp_path / "nowhere.log")]
    ended = subprocess.run(line, capture_output=True, text=True, timeout=60, check=True)

    told = ["step 7", "step 8", "step 9", "of another process", "afterwards"]
    assert ended.stdout.splitlines() == told
