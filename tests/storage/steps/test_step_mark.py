"""What a step is compared by, in the form in which it lies on the replay log."""

from __future__ import annotations

from pathlib import Path

from supervisor.storage.steps.replay_log import EntryKind, ReplayLogWriter, StepMark
from supervisor.storage.steps.replay_log_reader import ReplayLogReader


def test_a_packed_mark_is_what_the_tape_holds_of_it(tmp_path: Path) -> None:
    fields = (7, 1e-3, 2, 3, 2**63 + 5)
    replay_log = ReplayLogWriter(tmp_path / "tape")
    replay_log.append_step(*fields)
    end = replay_log.write_out()
    replay_log.close()

    entry = ReplayLogReader(tmp_path / "tape", end=end).take(EntryKind.STEP)

    assert entry == StepMark.pack(*fields)
    assert StepMark.unpack(entry) == StepMark(*fields)
