"""The end in one sentence for Kubernetes, and for what starts torchrun."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from supervisor.parent.terminal.outcome import ERROR_FILE, Outcome, RunStateName, leave_last_word

LINE = "given up at step 7: crash limit"


def outcome(state: RunStateName) -> Outcome:
    return Outcome(state=state, exit_code=70, reason="crash limit")


@pytest.mark.parametrize("state", ["completed", "gave_up", "interrupted", "failed"])
def test_kubernetes_is_told_how_each_run_ended(tmp_path: Path, state: RunStateName) -> None:
    log = tmp_path / "termination-log"
    log.touch()

    leave_last_word(outcome(state), LINE, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, log)

    assert log.read_text() == LINE


def test_it_is_no_longer_than_kubernetes_reads(tmp_path: Path) -> None:
    log = tmp_path / "termination-log"
    log.touch()

    leave_last_word(outcome("gave_up"), "é" * 5000, {"KUBERNETES_SERVICE_HOST": "a"}, log)

    assert log.read_text() == "é" * 2048


def test_elsewhere_nothing_is_written(tmp_path: Path) -> None:
    log = tmp_path / "termination-log"

    leave_last_word(outcome("gave_up"), LINE, {"KUBERNETES_SERVICE_HOST": "a"}, log)
    assert not log.exists()
    log.touch()
    leave_last_word(outcome("gave_up"), LINE, {}, log)
    assert log.read_text() == ""


def test_a_failure_is_in_torchruns_error_file(tmp_path: Path) -> None:
    file = tmp_path / "new" / "error.json"

    leave_last_word(outcome("completed"), LINE, {ERROR_FILE: str(file)})
    leave_last_word(outcome("interrupted"), LINE, {ERROR_FILE: str(file)})
    assert not file.exists()
    leave_last_word(outcome("gave_up"), LINE, {ERROR_FILE: str(file)})

    told = json.loads(file.read_text())["message"]
    assert (told["message"], told["errorCode"]) == (LINE, 70)
    assert int(told["extraInfo"]["timestamp"]) > 0


def test_what_the_script_has_left_there_stays(tmp_path: Path) -> None:
    file = tmp_path / "error.json"
    file.write_text("its own")

    leave_last_word(outcome("failed"), LINE, {ERROR_FILE: str(file)})

    assert file.read_text() == "its own"


def test_a_disk_that_refuses_is_no_trouble(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    leave_last_word(outcome("failed"), LINE, {ERROR_FILE: str(tmp_path / "file" / "error.json")})
