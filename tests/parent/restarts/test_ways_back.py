"""How an attempt that did not come back to its checkpoint is followed by another."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from supervisor.parent.restarts.restart_policy import START, WaysBack
from supervisor.parent.watching import first_step_lines
from supervisor.records import LOADS_ALL, REPLAY, ExitCause, WorkerExit
from supervisor.settings import FastForwardSettings
from tests.parent.conftest import Ran

COMPLETED = ["note", {"kind": "completed", "code": 0}]
RAISED = WorkerExit(cause=ExitCause.EXCEPTION, evidence=("KeyError: '2'",))
KILLED = WorkerExit(cause=ExitCause.KILLED, evidence=("SIGKILL, from outside",))
TRAINED = [["checkpoint", 80], ["steps", 0, 90], ["kill", signal.SIGKILL]]
SHORT = [["note", {"kind": "exception", "exception": "KeyError", "replaying": True}], ["exit", 1]]


def ways(order: list[str] | None = None, way: str = REPLAY) -> WaysBack:
    settings = FastForwardSettings()
    if order is not None:
        settings.fallbacks = order
    return WaysBack(settings, kills=3, few_steps=50, way=way)


def test_each_other_way_is_tried_once_and_then_none() -> None:
    back = ways(["approximate"])

    assert [back.next(RAISED, 80) for _ in range(2)] == ["approximate", None]


def test_the_first_step_of_older_configs_is_no_way_of_its_own_any_more() -> None:
    back = ways(["first_step", "approximate"])

    assert [back.next(RAISED, 80) for _ in range(2)] == ["approximate", None]


def test_a_start_is_the_last_way_and_does_not_become_the_way_to_later_checkpoints() -> None:
    back = ways()

    assert [back.next(RAISED, 80) for _ in range(3)] == ["approximate", START, START]
    assert back.way == "approximate"


def test_a_checkpoint_of_few_steps_is_not_resumed_approximately() -> None:
    back = ways()

    assert back.next(RAISED, 50) == START


def test_kills_on_the_way_get_the_same_way_again_but_not_for_ever() -> None:
    back = ways()

    tried = [back.next(KILLED, 80) for _ in range(6)]

    assert tried == [REPLAY] * 2 + ["approximate"] * 3 + [START]


def test_a_way_that_hangs_is_tried_once_more() -> None:
    back = ways()

    tried = [back.next(WorkerExit(cause=ExitCause.HANG), 80) for _ in range(4)]

    assert tried == [REPLAY, "approximate", "approximate", START]


def test_another_parent_goes_on_with_the_way_that_was_found() -> None:
    assert ways(way="approximate").next(RAISED, 80) == START


def test_an_attempt_that_ends_on_its_way_is_no_crash(supervise: Callable[..., Ran]) -> None:
    last = [["steps", 0, 120], COMPLETED]
    ran = supervise({"1": TRAINED, "2": SHORT, "3": SHORT, "4": last})

    assert (ran.result.exit_code, ran.result.state) == (0, "completed")
    assert [e["found"] for e in ran.of_kind("warning") if e.get("found")] == ["began again"]
    found = [(e["checkpoint_step"], e["way"]) for e in ran.of_kind("attempt_started")]
    resumed = [(80, REPLAY), (80, "approximate"), (None, "approximate")]
    assert found == [(None, REPLAY), *resumed]
    reasons = [e["reason"] for e in ran.of_kind("restart")][1:]
    assert (
        "which does not count as a crash of the training (KeyError: ): the next one goes on"
        in reasons[0]
    )
    assert reasons[-1].endswith("from the start")


@pytest.mark.parametrize("kind", ["user_error", "system_exit", "short"])
def test_no_kind_of_end_on_its_way_ends_the_run(supervise: Callable[..., Ran], kind: str) -> None:
    note = ["note", {"kind": kind, "code": 3, "replaying": True}]

    ran = supervise({"1": TRAINED, "2": [note, ["exit", 3]], "3": [COMPLETED]})

    assert ran.result.exit_code == 0
    assert ran.order(3)["way"] == "approximate"


def test_an_attempt_that_needs_what_it_did_not_load_is_followed_by_one_that_loads_all(
    supervise: Callable[..., Ran],
) -> None:
    needs = ["note", {"kind": "loading", "message": "a shape", "replaying": True}]
    back = [["steps", 80, 90], ["kill", signal.SIGKILL]]

    ran = supervise({"1": TRAINED, "2": [needs, ["exit", 71]], "3": back, "4": [COMPLETED]})

    assert ran.result.exit_code == 0
    assert [ran.order(attempt)["way"] for attempt in (2, 3, 4)] == [REPLAY, LOADS_ALL, LOADS_ALL]
    assert ran.order(3)["checkpoint_step"] == 80
    (reason,) = [e["reason"] for e in ran.of_kind("restart") if "all batches loaded" in e["reason"]]
    assert "which does not count as a crash of the training (a shape)" in reason


def test_a_crash_after_the_arrival_is_counted_as_ever(supervise: Callable[..., Ran]) -> None:
    crash = [["steps", 81, 85], ["note", {"kind": "exception", "exception": "E"}], ["exit", 1]]

    ran = supervise({"1": TRAINED, "*": crash})

    assert ran.result.exit_code == 70
    assert {e["way"] for e in ran.of_kind("attempt_started")} == {REPLAY}


def test_a_script_that_fails_before_it_sets_out_is_judged_as_ever(
    supervise: Callable[..., Ran],
) -> None:
    broken = ["note", {"kind": "exception", "exception": "SyntaxError", "phase": "import"}]

    ran = supervise({"1": TRAINED, "2": [broken, ["exit", 1]]})

    assert ran.result.state == "failed"
    assert len(ran.of_kind("attempt_started")) == 2


def test_a_long_fast_forward_says_how_far_it_is(
    supervise: Callable[..., Ran],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(first_step_lines, "_TELL_AFTER_S", 0.0)
    monkeypatch.setattr(first_step_lines, "_TELL_EVERY_S", 0.0)

    supervise({"1": TRAINED, "2": [["replay", 20, 3.0], ["steps", 80, 90], COMPLETED]}, quiet=False)

    assert "supervisor: fast-forwarding: 20 of 80 steps (25 %)" in capfd.readouterr().err


def test_a_run_that_begins_again_and_makes_no_step_is_not_completed(
    supervise: Callable[..., Ran],
) -> None:
    ran = supervise({"1": TRAINED, "2": SHORT, "3": SHORT, "4": [COMPLETED]})

    assert (ran.result.exit_code, ran.result.state) == (70, "gave_up")
    assert "ended without a step" in ran.of_kind("gave_up")[0]["reason"]
