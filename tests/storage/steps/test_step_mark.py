"""What a step is compared by, in the form in which it lies on the tape."""

from __future__ import annotations

from pathlib import Path

from supervisor.storage.steps.tape import EntryKind, StepMark, TapeWriter
from supervisor.storage.steps.tape_reader import TapeReader


def test_a_packed_mark_is_what_the_tape_holds_of_it(tmp_path: Path) -> None:
    fields = (7, 1e-3, 2, 3, 2**63 + 5)
    tape = TapeWriter(tmp_path / "tape")
    tape.append_step(*fields)
    end = tape.write_out()
    tape.close()

    entry = TapeReader(tmp_path / "tape", end=end).take(EntryKind.STEP)

    assert entry == StepMark.pack(*fields)
    assert StepMark.unpack(entry) == StepMark(*fields)
