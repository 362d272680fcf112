"""Each rank of a node leaves a note for the others."""

from __future__ import annotations

from pathlib import Path

from supervisor.storage.run.rank_notes import NOTE_BYTES, RankNotes


def test_the_newest_note_of_each_rank_is_read(tmp_path: Path) -> None:
    first, second = (RankNotes(tmp_path / "notes", rank, 2) for rank in range(2))
    assert first.read(1) is None

    second.write(b"a long one")
    second.write(b"short")

    assert first.read(1) == b"short"
    assert second.read(0) is None


def test_half_a_note_is_none(tmp_path: Path) -> None:
    notes = RankNotes(tmp_path / "notes", 0, 1)
    notes.write(b"whole")
    data = bytearray((tmp_path / "notes").read_bytes())
    data[data.index(b"whole")] ^= 1

    (tmp_path / "notes").write_bytes(data)

    assert RankNotes(tmp_path / "notes", 0, 1).read(0) is None


def test_a_note_without_room_leaves_none(tmp_path: Path) -> None:
    notes = RankNotes(tmp_path / "notes", 0, 1)
    notes.write(b"before")

    notes.write(bytes(NOTE_BYTES))

    assert notes.read(0) is None
