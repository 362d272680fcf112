"""Memory in a file that processes share."""

from __future__ import annotations

from pathlib import Path

from supervisor.storage.files.mapped_file import map_shared


def test_who_maps_it_later_finds_what_is_there_and_may_want_more(tmp_path: Path) -> None:
    path = tmp_path / "board" / "notes"
    first = map_shared(path, 8)
    first[:3] = b"one"

    second = map_shared(path, 16)

    assert second[:16] == b"one" + bytes(13)
    assert path.stat().st_mode & 0o777 == 0o600
