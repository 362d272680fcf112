"""What was read as a whole comes back, however often it was read, from a bounded memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from supervisor.storage.steps.replay_log import ReplayLogWriter
from supervisor.storage.steps.replay_log_reader import ReplayLogReader
from supervisor.worker.reads import recording as large_reads
from supervisor.worker.reads.recording import LargeReads, ReplayedReads


def read_again(path: Path, attempts: list[list[int]]) -> list[list[float]]:
    """Returns what a replay gets for tensors that hold a number of the recorded run each."""
    end = 0
    for numbers in attempts:
        replay_log = ReplayLogWriter(path, keep=end)
        reads = LargeReads(replay_log, 1e9, lambda why: None)
        for number in numbers:
            reads.note(torch.full((3,), float(number)))
        end = replay_log.write_out()
        replay_log.close()
    replayed = ReplayedReads(ReplayLogReader(path, end=end))
    found = []
    for _ in range(sum(map(len, attempts))):
        tensor = torch.full((3,), -1.0)
        given = replayed.recorded(tensor)
        assert given is not None
        found.append(given.tolist())
        assert len(replayed._known) <= large_reads._REMEMBERED
    return found


@pytest.mark.parametrize("attempts", [[[1, 2, 1, 3, 1, 4, 2, 2]], [[1, 2, 3], [2, 1, 1, 3, 2]]])
def test_forgotten_contents_are_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attempts: list[list[int]]
) -> None:
    monkeypatch.setattr(large_reads, "_REMEMBERED", 2)

    found = read_again(tmp_path / "tape", attempts)

    assert found == [[float(number)] * 3 for numbers in attempts for number in numbers]
