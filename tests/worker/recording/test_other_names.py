from __future__ import annotations

from pathlib import Path

from supervisor.worker.recording.other_names import OtherNames


def test_the_number_of_a_process_is_no_part_of_a_longer_one(tmp_path: Path) -> None:
    names = OtherNames([("1234", "5678")])

    assert names.of(f"{tmp_path}/best_1234.pt") == f"{tmp_path}/best_5678.pt"
    assert names.of(f"{tmp_path}/step_12345.pt") == f"{tmp_path}/step_12345.pt"


def test_a_name_whose_folder_is_not_there_stays(tmp_path: Path) -> None:
    names = OtherNames([("run_one", "run_two")])

    assert names.of(f"{tmp_path}/run_one/a.pt") == f"{tmp_path}/run_one/a.pt"
    (tmp_path / "run_two").mkdir()
    assert names.of(f"{tmp_path}/run_one/a.pt") == f"{tmp_path}/run_two/a.pt"
