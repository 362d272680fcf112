"""Which files a database consists of, by how the script opens it."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.storage.script_files.databases import DBM, LMDB, LMDB_FOLDER, SQLITE
from supervisor.storage.script_files.kept_versions import COPIED_BYTES
from supervisor.worker.outside_draws import patches_databases as patches


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (patches._of_lmdb("cache", map_size=1 << 20), ("cache", LMDB_FOLDER)),
        (patches._of_lmdb(Path("cache"), 1 << 20, False), ("cache", LMDB)),
        (patches._of_lmdb("cache", readonly=True)[0], None),
        (patches._of_sqlite("study.db"), ("study.db", SQLITE)),
        (patches._of_sqlite(":memory:")[0], None),
        (patches._of_dbm("rows", "c"), ("rows", DBM)),
        (patches._of_dbm("rows")[0], None),
    ],
)
def test_a_database_is_found_by_how_it_is_opened(found: object, expected: object) -> None:
    assert found == expected


def test_a_large_lmdb_is_a_data_set(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    with open(tmp_path / "cache" / "data.mdb", "wb") as file:
        file.truncate(COPIED_BYTES + 1)

    assert patches._of_lmdb(str(tmp_path / "cache"))[0] is None
