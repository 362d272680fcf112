"""Ranks that start again do not meet in the file in which the dead have met."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

MEET = """
import sys
import torch.distributed as dist
from supervisor.worker.interception.patches_ranks import begin_file_stores_anew
begin_file_stores_anew(int(sys.argv[1]))
url = "file://" + sys.argv[2]
own, (other, *_) = dist.FileStore(sys.argv[2], 1), next(dist.rendezvous(url, rank=0, world_size=1))
print(own.path == other.path, own.path)
"""


@pytest.mark.parametrize(("attempt", "behind"), [(1, ""), (3, ".attempt_3")])
def test_each_attempt_but_the_first_has_a_file_of_its_own(
    tmp_path: Path, attempt: int, behind: str
) -> None:
    line = [sys.executable, "-c", MEET, str(attempt), str(tmp_path / "meet")]

    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=True)

    assert done.stdout.split() == ["True", f"{tmp_path / 'meet'}{behind}"]
