"""What the benchmark of public scripts makes of its results."""

from __future__ import annotations

import io
import json
from pathlib import Path

import torch

from benchmarks import foreign
from benchmarks.foreign.catalogue import SCRIPTS
from benchmarks.foreign.table import compatibility_table
from benchmarks.foreign.trial import DURATION, Ended, _difference
from benchmarks.foreign.verdict import Kill, Verdict, read_verdicts
from benchmarks.generated.comparison import same_saved
from benchmarks.page import DOCS, shown

RESULTS = Path(foreign.__file__).parent / "results.json"
GAN = Verdict(
    "PyTorch-GAN gan",
    "same",
    "same",
    (Kill("evaluation", "exact", "same"), Kill("save 1 of 2", "exact exact", "weights")),
    date="day",
    torch="2",
)
STRUCK_EARLY = (Kill("step 3", "start", "same"),)
FOLDS = Verdict("Fabric folds", "same", "same", STRUCK_EARLY, date="day", torch="2", version="abc")
STRUCK = (Kill("step 9", "exact", "same"),)
NANO = Verdict("nanoGPT characters", "same", "same", STRUCK, date="day", torch="2")
MAKEMORE = Verdict("makemore transformer", "same", "same", STRUCK, date="day", torch="2")
BROKEN = Verdict("Fabric PPO", "exit 1")


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


def test_the_table_counts_kills_by_library_and_leaves_out_what_did_not_run() -> None:
    lines = compatibility_table([GAN, FOLDS, BROKEN, NANO, MAKEMORE]).splitlines()

    assert lines[2:] == [
        "| eriklindernoren/PyTorch-GAN | 1/1 | 1/2 | PyTorch-GAN gan: exact exact, another end |",
        "| Lightning-AI/pytorch-lightning | 1/1 | 0/1 | the other kills: from the start |",
        "| karpathy/makemore; karpathy/nanoGPT | 2/2 | 2/2 | every kill resumed exactly |",
        "| **all** | 4/4 | 3/5 | falsely called exact: 1 |",
    ]


def test_no_two_scripts_have_one_name() -> None:
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


def test_the_page_shows_the_results_that_are_kept() -> None:
    found = read_verdicts(RESULTS).values()

    assert found
    assert compatibility_table(found) == shown(DOCS / "foreign.md")


def test_a_file_named_by_the_clock_is_found_under_its_name_of_another_run() -> None:
    def ended(*names: str) -> Ended:
        return Ended(0, [], "", [], 0, {name: name.encode() for name in names}, 1.0)

    plain = ended("out/00-38-09/a.yaml", "out/00-38-09/b.yaml", "net_3.pt")
    masked = {"out/00-38-09/a.yaml", "out/00-38-09/b.yaml"}  # a second plain run has others
    same = ended("out/00-41-32/a.yaml", "out/00-41-32/b.yaml", "net_3.pt")

    assert _difference(plain, same, masked) == "same"
    assert _difference(plain, same, set()) != "same"
    assert "net_4.pt" in _difference(plain, ended(*same.files, "net_4.pt"), masked)


def test_times_in_printed_lines_count_as_the_same_however_they_are_aligned() -> None:
    quick, slow = "epoch   3 | time:  0.28s | loss  5.24", "epoch   3 | time: 12.76s | loss  5.24"

    assert DURATION.sub("#", quick) == DURATION.sub("#", slow)
    assert DURATION.sub("#", quick) != DURATION.sub("#", slow.replace("5.24", "5.25"))
