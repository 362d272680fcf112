"""What the benchmark of public scripts makes of its results."""

from __future__ import annotations

import io
import json
from pathlib import Path

import torch

from benchmarks import foreign
from benchmarks.foreign.catalogue import SCRIPTS
from benchmarks.foreign.categories import OTHERS, category_of
from benchmarks.foreign.table import category_table, script_table
from benchmarks.foreign.verdict import Kill, Verdict, read_verdicts
from benchmarks.generated.comparison import same_saved

RESULTS = Path(foreign.__file__).parent / "results.json"
GAN = Verdict(
    "PyTorch-GAN gan",
    "same",
    "same",
    (Kill("evaluation", "exact", "same"), Kill("save 1 of 2", "exact exact", "weights")),
)
LIGHTNING = Verdict("Lightning GAN", "same", "same", (Kill("step 3", "start", "same"),))
BROKEN = Verdict("Fabric folds", "exit 1")


def test_a_kill_is_false_where_every_resume_was_called_exact_and_the_end_was_another() -> None:
    assert Kill("a", "exact exact", "weights").is_false
    assert not Kill("a", "exact approximate", "weights").is_false
    assert not Kill("a", "exact", "same").is_false
    assert GAN.is_false
    assert not GAN.is_exact


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    file = tmp_path / "foreign.json"
    file.write_text(json.dumps([v.to_dict() for v in (GAN, BROKEN)]))

    assert read_verdicts(file) == {GAN.name: GAN, BROKEN.name: BROKEN}
    assert read_verdicts(tmp_path / "none.json") == {}


def test_the_tables_count_kills_by_category_and_leave_out_what_did_not_run() -> None:
    lines = category_table([GAN, LIGHTNING, BROKEN]).splitlines()

    assert lines[2:] == [
        "| Lightning, Fabric | 1 | 1 | 1 | 0 | 1 | 0 |",
        "| GAN | 1 | 1 | 2 | 1 | 0 | 1 |",
        "| **all** | 2 | 2 | 3 | 1 | 1 | 1 |",
    ]
    assert "Fabric folds" not in script_table([GAN, LIGHTNING, BROKEN])


def test_every_kind_of_script_has_its_category() -> None:
    plain = [script.name for script in SCRIPTS if category_of(script.name) == OTHERS]

    assert len(plain) < len(SCRIPTS) / 4, plain
    assert len({script.name for script in SCRIPTS}) == len(SCRIPTS)


def test_saved_files_with_equal_values_are_the_same_file() -> None:
    def saved(value: object) -> bytes:
        file = io.BytesIO()
        torch.save(value, file)
        return file.getvalue()

    rates = (0.9, 0.99)
    shared, apart = saved([rates, rates]), saved([rates, (*rates,)])

    assert shared != apart
    assert same_saved(shared, apart)
    assert not same_saved(shared, saved([rates, (0.9, 0.98)]))


def test_the_pages_show_the_results_that_are_kept() -> None:
    found = list(read_verdicts(RESULTS).values())
    root = RESULTS.parents[2]

    assert found
    assert script_table(found) in (root / "docs" / "foreign.md").read_text()
    assert category_table(found) in (root / "docs" / "measured.md").read_text()
