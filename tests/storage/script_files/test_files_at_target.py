"""Folders have the times that they had, whatever was moved in them since."""

from __future__ import annotations

import os
from pathlib import Path

from supervisor.storage.script_files.files_at_target import folder_times, put_back_folder_times


def test_the_oldest_folder_is_still_the_oldest_when_it_was_filled_last(tmp_path: Path) -> None:
    old, new = tmp_path / "step_8", tmp_path / "step_16"
    for age, folder in ((20, old), (10, new)):
        folder.mkdir()
        (folder / "model.pt").write_text("")
        os.utime(folder, (1e9 - age, 1e9 - age))
    recorded = folder_times([str(old), str(new), str(tmp_path / "gone")])
    for folder in (new, old):
        (folder / "random_1.pt").write_text("")

    put_back_folder_times({**recorded, str(tmp_path / "gone"): 0})

    assert folder_times([str(old), str(new)]) == recorded
    assert recorded[str(old)] < recorded[str(new)]
