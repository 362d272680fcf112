"""The outer loop over real processes, with a worker that does as it is told."""

from __future__ import annotations

import json
import os
import signal
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor.errors import UsageError
from tests.parent.conftest import Ran, fast_settings, has_ended

COMPLETED = ["note", {"kind": "completed"}]


def test_a_completed_training_ends_with_0_after_one_attempt(supervise: Callable[..., Ran]) -> None:
    ran = supervise({"1": [["steps", 0, 9], COMPLETED]})

    assert (ran.result.exit_code, ran.result.state) == (0, "completed")
    assert [event["kind"] for event in ran.events] == [
        "run_started",
        "attempt_started",
        "worker_exited",
        "run_finished",
    ]
    assert ran.of_kind("worker_exited")[0]["last_step"] == 9
    assert json.loads((ran.run_dir / "run.json").read_text())["state"] == "completed"


def test_versions_that_nobody_has_tried_are_said_in_one_line_at_the_start(
    supervise: Callable[..., Ran],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    newer = {"python": "3.14.1", "torch": "2.15.0"}
    monkeypatch.setattr("supervisor.parent.run_log.current_versions", lambda: newer)

    ran = supervise({"1": [["steps", 0, 9], COMPLETED]}, quiet=False)

    lines = [line for line in capsys.readouterr().err.splitlines() if "not tried with" in line]
    assert len(lines) == 1
    assert "Python 3.14.1 (tried up to 3.13) and torch 2.15.0 (tried up to 2.14)" in lines[0]
    assert [event["message"] in lines[0] for event in ran.of_kind("warning")] == [True]


def test_a_system_without_process_descriptors_is_asked_again_and_again(
    supervise: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(pid: int, flags: int = 0) -> int:
        raise PermissionError(1, "not permitted")

    monkeypatch.setattr(os, "pidfd_open", forbidden, raising=False)

    ran = supervise({"1": [["steps", 0, 9], COMPLETED]})

    assert (ran.result.exit_code, ran.result.state) == (0, "completed")


def test_a_killed_worker_goes_on_from_the_newest_checkpoint(supervise: Callable[..., Ran]) -> None:
    ran = supervise(
        {
            "1": [
                ["checkpoint", 50, True],
                ["checkpoint", 80],
                ["steps", 0, 90],
                ["kill", signal.SIGKILL],
            ],
            "2": [["steps", 81, 99], COMPLETED],
        }
    )

    assert ran.result.exit_code == 0
    assert ran.order(2)["checkpoint_step"] == 80
    assert ran.order(2)["lr_factor"] == 1.0
    first = ran.of_kind("worker_exited")[0]
    assert (first["cause"], first["signum"], first["last_step"]) == ("killed", 9, 90)
    assert ran.of_kind("restart")[0]["checkpoint_step"] == 80


def test_after_numerical_trouble_the_stable_checkpoint_is_used_carefully(
    supervise: Callable[..., Ran],
) -> None:
    ran = supervise(
        {
            "1": [
                ["checkpoint", 50, True],
                ["checkpoint", 80],
                ["steps", 0, 90],
                ["note", {"kind": "restart", "message": "rollbacks are used up"}],
                ["exit", 71],
            ],
            "2": [["steps", 51, 99], COMPLETED],
        }
    )

    order = ran.order(2)
    assert ran.result.exit_code == 0
    assert (order["checkpoint_step"], order["lr_factor"]) == (50, 0.5)
    assert order["careful_steps"] == 50
    assert not (ran.run_dir / "checkpoints/step_00000080").exists()


def test_a_run_that_ended_sick_goes_back_to_the_step_that_is_named(
    supervise: Callable[..., Ran],
) -> None:
    supervise({"1": [["checkpoint", 50, True], ["checkpoint", 80], ["steps", 0, 99], COMPLETED]})

    again = supervise({"*": [["steps", 50, 99], COMPLETED]}, resume=True, resume_from="50")

    assert (again.result.exit_code, again.result.state) == (0, "completed")
    assert again.order(2)["checkpoint_step"] == 50
    assert not (again.run_dir / "checkpoints/step_00000080").exists()


def test_a_damaged_checkpoint_is_reported_and_passed_over(supervise: Callable[..., Ran]) -> None:
    ran = supervise(
        {
            "1": [["checkpoint", 50], ["checkpoint", 80], ["steps", 0, 90], ["kill", 9]],
            "*": [COMPLETED],
        }
    )
    (ran.run_dir / "checkpoints/step_00000080/state").write_bytes(b"stale")

    again = supervise({"*": [COMPLETED]}, resume=True)

    assert again.order(3)["checkpoint_step"] == 50
    assert [event["step"] for event in again.of_kind("checkpoint_rejected")] == [80]


def test_crashes_without_progress_end_in_giving_up(supervise: Callable[..., Ran]) -> None:
    ran = supervise({"*": [["steps", 0, 3], ["kill", signal.SIGSEGV]]})

    assert (ran.result.exit_code, ran.result.state) == (70, "gave_up")
    assert len(ran.of_kind("attempt_started")) == 3
    assert ran.order(3)["skip_steps"] == []
    assert "SIGSEGV" in ran.of_kind("gave_up")[0]["reason"]
    assert json.loads((ran.run_dir / "run.json").read_text())["crash_count"] == 3


def test_an_emergency_stop_is_final(supervise: Callable[..., Ran]) -> None:
    ran = supervise(
        {"*": [["steps", 0, 3], ["note", {"kind": "stop", "message": "risk 0.97"}], ["exit", 71]]}
    )

    assert ran.result.exit_code == 70
    assert len(ran.of_kind("attempt_started")) == 1
    assert "risk 0.97" in ran.of_kind("gave_up")[0]["reason"]


@pytest.mark.parametrize(
    ("note", "code", "expected"),
    [
        ({"kind": "user_error", "exception": "SyntaxError", "phase": "import"}, 1, 1),
        ({"kind": "exception", "exception": "NameError", "phase": "before_first_step"}, 1, 1),
        ({"kind": "system_exit", "code": 2, "phase": "import"}, 2, 2),
        ({"kind": "system_exit", "code": 5, "phase": "training"}, 5, 5),
    ],
)
def test_what_another_attempt_cannot_help_is_tried_once(
    supervise: Callable[..., Ran], note: dict[str, object], code: int, expected: int
) -> None:
    ran = supervise({"*": [["note", note], ["exit", code]]})

    assert (ran.result.exit_code, ran.result.state) == (expected, "failed")
    assert len(ran.of_kind("attempt_started")) == 1
    assert ran.of_kind("worker_exited")[0]["cause"] == "user_error"


def test_exit_code_0_without_the_marker_is_no_success(supervise: Callable[..., Ran]) -> None:
    ran = supervise({"1": [["steps", 0, 3], ["exit", 0]], "2": [COMPLETED]})

    assert ran.result.exit_code == 0
    assert len(ran.of_kind("attempt_started")) == 2
    assert "without completion" in ran.of_kind("worker_exited")[0]["evidence"][0]


def test_a_hung_worker_is_ended_after_its_stacks_were_read(supervise: Callable[..., Ran]) -> None:
    settings = fast_settings()
    settings.watchdog.hang_timeout_s = 0.5

    ran = supervise({"1": [["hang"]], "2": [COMPLETED]}, settings=settings)

    hang = ran.of_kind("hang_detected")[0]
    assert ran.result.exit_code == 0
    assert ran.of_kind("worker_exited")[0]["cause"] == "hang"
    assert hang["step"] == 0
    assert hang["frames"][0].startswith("wait_for_ever (")


def test_a_hang_before_the_first_step_is_found_by_what_earlier_starts_took(
    supervise: Callable[..., Ran],
) -> None:
    settings = fast_settings()
    settings.watchdog.hang_timeout_s = 0.2

    ran = supervise(
        {"1": [["steps", 0, 9], ["kill", signal.SIGKILL]], "2": [["hang", 0]], "3": [COMPLETED]},
        settings=settings,
    )

    hang = ran.of_kind("hang_detected")[0]
    assert ran.result.exit_code == 0
    assert [e["cause"] for e in ran.of_kind("worker_exited")] == ["killed", "hang", "completed"]
    assert hang["attempt"] == 2
    assert hang["limit_s"] < settings.watchdog.first_step_timeout_s
    assert hang["frames"][0].startswith("wait_for_ever (")
    assert "wait_for_ever" in (ran.run_dir / hang["stacks"]).read_text()


def test_no_descendant_outlives_its_worker(supervise: Callable[..., Ran]) -> None:
    ran = supervise({"1": [["child", True], ["steps", 0, 3], COMPLETED]})

    pid = int((ran.run_dir / "child.pid").read_text())
    assert has_ended(pid)
    assert "left behind" in ran.of_kind("warning")[0]["message"]


@pytest.mark.parametrize("stubborn", [False, True])
def test_a_daemon_with_a_session_of_its_own_ends_with_the_attempt(
    supervise: Callable[..., Ran], stubborn: bool
) -> None:
    ran = supervise(
        {"1": [["daemon", stubborn], ["steps", 0, 3], ["kill", signal.SIGKILL]], "2": [COMPLETED]}
    )

    assert ran.result.exit_code == 0
    assert has_ended(int((ran.run_dir / "daemon.pid").read_text()))
    assert [e["attempt"] for e in ran.of_kind("warning") if "left behind" in e["message"]] == [1]


def test_what_a_completed_script_left_running_lives_on_only_if_that_is_asked_for(
    supervise: Callable[..., Ran],
) -> None:
    settings = fast_settings()
    settings.keep_background = True

    ran = supervise(
        {"1": [["child"], ["kill", 9]], "2": [["daemon"], COMPLETED]}, settings=settings
    )

    kept = int((ran.run_dir / "daemon.pid").read_text())
    try:
        assert not has_ended(kept)
        assert has_ended(int((ran.run_dir / "child.pid").read_text()))
    finally:
        os.kill(kept, signal.SIGKILL)


def test_a_script_that_left_something_running_is_told_what_and_how_to_keep_it(
    supervise: Callable[..., Ran],
) -> None:
    ran = supervise({"1": [["daemon"], COMPLETED]})

    pid = int((ran.run_dir / "daemon.pid").read_text())
    (warning,) = ran.of_kind("warning")
    assert has_ended(pid)
    assert f"({pid})" in warning["message"]
    assert "keep_background=true" in warning["message"]


def test_a_worker_has_a_session_of_its_own_and_knows_its_parent(
    supervise: Callable[..., Ran],
) -> None:
    ran = supervise({"1": [["describe"], COMPLETED]}, arguments=("--epochs", "3"))

    facts = ran.facts()
    assert facts["session"] is True
    assert facts["parent"] == str(facts["real_parent"]) != str(os.getpid())  # its subreaper
    assert facts["arguments"] == ["--epochs", "3"]


def test_resume_arguments_come_from_the_second_attempt_on(supervise: Callable[..., Ran]) -> None:
    ran = supervise(
        {"1": [["describe"], ["steps", 0, 1], ["kill", 9]], "2": [["describe"], COMPLETED]},
        arguments=("--lr", "1"),
        resume_arguments=("--resume",),
    )

    assert ran.facts(1)["arguments"] == ["--lr", "1"]
    assert ran.facts(2)["arguments"] == ["--lr", "1", "--resume"]


def test_a_directory_that_holds_a_run_is_refused(supervise: Callable[..., Ran]) -> None:
    supervise({"1": [COMPLETED]})

    with pytest.raises(UsageError, match="holds another run"):
        supervise({"1": [COMPLETED]})


def test_a_missing_script_starts_nothing(supervise: Callable[..., Ran], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        supervise({}, target=str(tmp_path / "none.py"))

    assert not (tmp_path / "run").exists()


def test_resume_goes_on_with_the_next_attempt_from_the_step_asked_for(
    supervise: Callable[..., Ran],
) -> None:
    supervise(
        {
            "*": [
                ["checkpoint", 40],
                ["checkpoint", 80],
                ["steps", 0, 90],
                ["note", {"kind": "stop", "message": "risk"}],
                ["exit", 71],
            ]
        }
    )

    ran = supervise({"*": [["steps", 41, 99], COMPLETED]}, resume_from="40")

    assert ran.result.exit_code == 0
    assert ran.order(2)["checkpoint_step"] == 40
    assert len(ran.of_kind("run_started")) == 2


@pytest.mark.parametrize("wish", ["7", "newest", "last-stable"])
def test_a_checkpoint_that_is_not_there_cannot_be_asked_for(
    supervise: Callable[..., Ran], wish: str
) -> None:
    supervise({"1": [["checkpoint", 40], COMPLETED]})

    with pytest.raises(UsageError, match=f"--from {wish}"):
        supervise({"*": [COMPLETED]}, resume_from=wish)


def test_everything_in_the_run_directory_is_private(supervise: Callable[..., Ran]) -> None:
    ran = supervise({"1": [["write", 1, "hello"], ["steps", 0, 3], COMPLETED]})

    modes = {
        path: stat.S_IMODE(path.stat().st_mode) for path in (ran.run_dir, *ran.run_dir.rglob("*"))
    }
    assert {path: oct(mode) for path, mode in modes.items() if mode & 0o077} == {}


def test_a_failing_report_leaves_the_exit_code_alone(
    supervise: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = fast_settings()
    settings.report.enabled = True
    monkeypatch.setattr(
        "supervisor.parent.run_log.write_report_apart",
        lambda rundir, is_forced: (None, "no fonts"),
    )

    ran = supervise({"1": [COMPLETED]}, settings=settings)

    assert ran.result.exit_code == 0
    assert "no fonts" in ran.of_kind("warning")[0]["message"]
