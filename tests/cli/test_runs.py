"""`supervisor runs`: sorted and filtered."""

from __future__ import annotations

import json
import math
from datetime import datetime, timezone
from pathlib import Path

import pytest

from supervisor.storage.run.run_state import RunState
from tests.cli.conftest import Cli, make_run, seen


@pytest.fixture(autouse=True)
def _runs(tmp_path: Path) -> None:
    today = datetime.now(timezone.utc).isoformat()
    folder = tmp_path / "runs"
    make_run(
        folder / "llm-1",
        RunState(state="completed", script="llm.py", started_at="2026-01-01T00:00:00+00:00"),
        (seen(0, 3.0), seen(1, 2.0)),
    )
    make_run(
        folder / "llm-2",
        RunState(state="gave_up", script="llm.py", started_at="2026-01-02T00:00:00+00:00"),
        (seen(0, 1.0),),
    )
    make_run(
        folder / "vae",
        RunState(state="completed", script="vae.py", started_at=today, attempts=4),
        (seen(0, 1.0), seen(1, 1.0), seen(2, math.nan)),
    )
    make_run(folder / "empty", RunState(state="interrupted", script="a.py", started_at=""))


def names(cli: Cli, *options: str) -> list[str]:
    code, out, _ = cli("runs", "--json", *options)
    assert code == 0
    return [run["name"] for run in json.loads(out)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), ["vae", "llm-2", "llm-1", "empty"]),
        (("--sort", "name"), ["empty", "llm-1", "llm-2", "vae"]),
        (("--sort", "step"), ["vae", "llm-1", "llm-2", "empty"]),
        (("--verdict", "completed"), ["vae", "llm-1"]),
        (("--verdict", "sick"), ["vae"]),
        (("--verdict", "gave_up,interrupted"), ["llm-2", "empty"]),
        (("--name", "llm"), ["llm-2", "llm-1"]),
        (("--name", "*-1"), ["llm-1"]),
        (("--name", "vae.py"), ["vae"]),
    ],
)
def test_what_is_shown_and_in_which_order(
    cli: Cli, options: tuple[str, ...], expected: list[str]
) -> None:
    assert names(cli, *options) == expected


def test_a_loss_that_is_no_number_comes_last(cli: Cli) -> None:
    assert names(cli, "--sort", "loss")[:2] == ["llm-2", "llm-1"]


def test_list_is_the_same(cli: Cli) -> None:
    listed = json.loads(cli("list", "--json", "--sort", "name")[1])

    assert [run["name"] for run in listed] == names(cli, "--sort", "name")


def test_none_of_them_is_told_apart_from_none_at_all(cli: Cli) -> None:
    assert cli("runs", "--name", "nothing")[1] == "runs: none of 4 runs is such a one\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--verdict", "complete"), "'complete': no such verdict; did you mean completed?"),
        (("--sort", "size"), "invalid choice: 'size'"),
    ],
)
def test_a_wrong_word_is_refused(cli: Cli, words: tuple[str, ...], told: str) -> None:
    code, _, err = cli("runs", *words)

    assert code == 64
    assert told in err
