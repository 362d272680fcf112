from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.errors import SupervisorError
from supervisor.storage.cases.case_advisor import Case, CaseMemory, similarity
from supervisor.storage.cases.cases import CaseLibrary, default_path

SPIKE = {
    "cause": "spike",
    "shape": "sudden",
    "detector": "loss_spike",
    "precision": "bf16",
    "phase": "warmup",
}


def case(treatment: str, outcome: str, **changes: str) -> Case:
    signature = {**SPIKE, **changes}
    return Case(
        time=1.0, cause=signature["cause"], signature=signature, treatment=treatment,
        outcome=outcome, run="runs/a", script="train.py",
    )  # fmt: skip


def treatments(library: CaseLibrary) -> tuple[str, ...]:
    return tuple(CaseMemory(library.all()).treatments(SPIKE))


@pytest.fixture
def library(tmp_path: Path) -> CaseLibrary:
    return CaseLibrary(tmp_path / "home" / "cases.sqlite")


def test_a_case_comes_back_as_it_was(library: CaseLibrary) -> None:
    filed = case("rollback", "helped")

    number = library.add(filed)

    assert library.all() == [replace(filed, id=number)]
    assert library.path.stat().st_mode & 0o777 == 0o600
    assert library.path.parent.stat().st_mode & 0o777 == 0o700


def test_an_empty_library_knows_nothing(library: CaseLibrary) -> None:
    assert library.all() == []
    assert treatments(library) == ()


def test_the_treatment_that_helped_most_is_the_best(library: CaseLibrary) -> None:
    for treatment, outcome in [
        ("cut_lr", "helped"),
        ("cut_lr", "failed"),
        ("rollback", "helped"),
        ("restart", "failed"),
        ("skip_update", "unknown"),
    ]:
        library.add(case(treatment, outcome))

    assert treatments(library) == ("rollback",)


def test_what_only_failed_is_never_recommended(library: CaseLibrary) -> None:
    library.add(case("cut_lr", "failed"))

    assert treatments(library) == ()


def test_similarity_is_the_weighted_share_that_agrees() -> None:
    assert similarity(SPIKE, SPIKE) == 1.0
    assert similarity({}, {}) == 0.0
    assert similarity(SPIKE, {**SPIKE, "precision": "fp16"}) == pytest.approx(0.9)
    assert similarity(SPIKE, {"cause": "spike"}) < 0.5


def test_several_runs_may_file_at_a_time(library: CaseLibrary) -> None:
    with ThreadPoolExecutor(3) as threads:
        list(threads.map(lambda _: library.add(case("rollback", "helped")), range(6)))

    assert len(library.all()) == 6


def test_an_unknown_outcome_is_our_own_mistake(library: CaseLibrary) -> None:
    with pytest.raises(ValueError, match="'fine' is not an outcome"):
        library.add(case("rollback", "fine"))


def test_a_file_that_is_no_library_is_told_with_advice(library: CaseLibrary) -> None:
    library.path.parent.mkdir()
    library.path.write_text("something else, and long enough to be taken for a database header")

    with pytest.raises(SupervisorError, match="move the file away, or set SUPERVISOR_CASES"):
        library.all()


def test_the_place_can_be_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SUPERVISOR_CASES", str(tmp_path / "mine.sqlite"))
    chosen = default_path()
    monkeypatch.delenv("SUPERVISOR_CASES")
    monkeypatch.setenv("HOME", str(tmp_path))

    assert chosen == tmp_path / "mine.sqlite"
    assert default_path() == tmp_path / ".local/share/training-supervisor/cases.sqlite"
