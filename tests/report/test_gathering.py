"""What a report says of every kind of end."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import socket
from pathlib import Path

import psutil
import pytest

from supervisor.records import NAN, StepRecord
from supervisor.report.gathering import gather
from supervisor.storage.evidence import AnomalyLog
from supervisor.storage.files.private_files import write_json
from supervisor.storage.run.run_state import save_run_state
from supervisor.storage.steps.flight_recorder import FlightRecorder
from supervisor.storage.steps.step_rows import HEADER_BYTES, ROW
from tests.report import synthetic_run
from tests.report.synthetic_run import ALL_ENDS, SyntheticRun


@pytest.mark.parametrize(
    ("name", "end", "root_cause"),
    [
        ("healthy", "completed", "none"),
        ("treated", "completed", "nonfinite_loss"),
        ("gave_up", "gave_up", "divergence"),
        ("hung", "gave_up", "hang"),
        ("interrupted", "interrupted", "interrupted"),
        ("user_error", "failed", "user_error"),
        ("orphaned", "supervisor_died", "supervisor_died"),
        ("out_of_memory", "gave_up", "out_of_memory"),
        ("empty", "unknown", "none"),
    ],
)
def test_every_end_has_its_name_and_its_cause(
    tmp_path: Path, name: str, end: str, root_cause: str
) -> None:
    root = ALL_ENDS[name](tmp_path / "run")

    report = gather(root)

    assert (report.end, report.root_cause) == (end, root_cause)
    assert report.verdict.count(". ") >= 1
    assert report.verdict.endswith(".")
    assert report.evidence


@pytest.mark.parametrize("name", sorted(ALL_ENDS))
def test_json_has_the_contracts_fields_and_survives_a_round_trip(tmp_path: Path, name: str) -> None:
    document = gather(ALL_ENDS[name](tmp_path / "run")).to_dict()

    text = json.dumps(document, allow_nan=False)

    assert json.loads(text) == document
    assert {"verdict", "root_cause", "evidence", "timeline", "interventions", "attempts", "cost",
            "resume_command"} <= set(document)  # fmt: skip
    assert {"useful_s", "replayed_s", "stalled_s", "down_s"} <= set(document["cost"])


def test_a_kill_after_healed_trouble_is_an_incident_of_its_own(tmp_path: Path) -> None:
    root = synthetic_run.treated(tmp_path / "run")

    incidents = gather(root).incidents

    assert [(one.key, one.step, one.survived) for one in incidents] == [
        ("nonfinite_loss", 120, True),
        ("killed", 200, True),
    ]


def test_noise_of_the_teardown_does_not_replace_the_first_failure(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "run")
    run.start(1)
    run.steps(0, 60)
    run.exit("exception", 60, evidence=("ValueError: bad label",))
    run.wait(1.0).exit("killed", 60, signum=15, evidence=("ended by the supervisor",))
    run.wait(1.0).exit("hang", 60)
    root = run.finish("gave_up")

    report = gather(root)

    assert report.root_cause == "exception"
    assert "ValueError: bad label" in report.root_cause_sentence


def test_an_exception_right_after_nan_is_a_consequence_of_the_nan(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "run")
    run.start(1)
    run.steps(0, 60, losses={59: NAN, 60: NAN})
    run.exit("exception", 60, evidence=("ValueError: probabilities contain NaN",))
    root = run.finish("gave_up")

    report = gather(root)

    assert report.root_cause == "nonfinite_loss"
    assert any("ended attempt 1" in sentence for sentence in report.evidence)


def test_the_first_failure_that_was_not_overcome_is_the_root(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "run")
    run.start(1)
    run.steps(0, 60).checkpoint(50)
    run.exit("killed", 60, signum=9, returncode=-9)
    run.start(2, from_step=50)
    run.steps(51, 120)
    run.exit("out_of_memory", 120)
    root = run.finish("gave_up")

    report = gather(root)

    assert report.root_cause == "out_of_memory"
    assert [one.survived for one in report.incidents] == [True, False]


def test_where_the_machine_is_suspect_the_report_says_what_to_test(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "run")
    run.start(1)
    run.steps(0, 80)
    run.event("warning", step=40, message="it came out otherwise", found="suspect hardware")
    run.exit("completed", 80, returncode=0)

    report = gather(run.finish("completed"))

    assert report.title == "Completed, suspect hardware"
    assert "Test the memory and the device" in report.next_steps[0]


def test_overflows_that_a_scaler_handles_are_no_incident(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "run")
    run.start(1)
    run.steps(0, 80, grads={0: float("inf"), 40: float("inf")}, loss_scale=65536.0)
    run.exit("completed", 80, returncode=0)
    root = run.finish("completed")

    report = gather(root)

    assert report.root_cause == "none"


def test_a_living_parent_means_that_the_run_still_goes_on(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "run")
    created = psutil.Process().create_time()
    run.state = dataclasses.replace(
        run.state, pid=os.getpid(), pid_created=created, host=socket.gethostname()
    )
    save_run_state(run.rundir, run.state)
    run.start(1)
    run.steps(0, 20)

    report = gather(run.rundir.root)

    assert report.end == "running"
    assert report.next_steps[0].startswith("Watch it: supervisor watch ")


def test_a_jump_of_the_learning_rate_is_what_to_mend(tmp_path: Path) -> None:
    run = synthetic_run.SyntheticRun(tmp_path / "run")
    run.start(1)
    run.checkpoint(50, stable=False)
    raised = dict.fromkeys(range(60, 66), 0.3)
    run.steps(0, 65, lrs=raised, losses=dict.fromkeys(range(61, 66), math.inf))
    run.exit("nonfinite", 65)

    report = gather(run.finish("gave_up"))

    assert report.next_steps[0].startswith("Fix the schedule of the learning rate: it went from")
    assert report.next_steps[0].endswith("to 0.3 at step 60.")
    assert any("--from 50" in step for step in report.next_steps)
    assert report.setting == "in your script: the learning rate from step 60 on"


def test_a_restart_after_the_same_step_failed_again_points_away_from_chance(
    tmp_path: Path,
) -> None:
    report = gather(synthetic_run.gave_up(tmp_path / "run"))

    assert any("failed again in attempts 2, 3" in sentence for sentence in report.evidence)
    assert report.decision is not None
    assert [branch.answer for branch in report.decision.branches] == [
        "numbers", "no", "yes", "no", "yes", "yes",
    ]  # fmt: skip
    assert report.setting == "--set restart.careful_lr_factor=0.25"


def test_the_resume_command_quotes_what_a_shell_would_split(tmp_path: Path) -> None:
    root = synthetic_run.interrupted(tmp_path / "my run; rm x")

    command = gather(root).resume_command

    assert command == f"supervisor resume '{root}'"


def test_damaged_files_are_named_and_prevent_nothing(tmp_path: Path) -> None:
    root = synthetic_run.treated(tmp_path / "run")
    (root / "run.json").write_text("{ not json")
    (root / "config.yaml").write_text("a: [1,")
    (root / "steps" / "rank_0.steps").write_bytes(b"garbage" * 100)
    (root / "anomalies" / "anomalies_rank_0.jsonl").write_bytes(b"\xff\xfe{]\n")
    with (root / "events.jsonl").open("ab") as journal:
        journal.write(b'{"torn": \x00')

    report = gather(root)

    named = " ".join(report.problems)
    for name in ("run.json", "config.yaml", "rank_0.steps", "anomalies_rank_0.jsonl"):
        assert name in named
    assert report.end == "completed"


def test_events_that_a_dead_parent_did_not_merge_are_in_the_timeline_once(tmp_path: Path) -> None:
    root = synthetic_run.orphaned(tmp_path / "run")
    lines = (root / "events.jsonl").read_text().splitlines(keepends=True)
    (root / "events").mkdir()
    (root / "events" / "rank_0.jsonl").write_text("".join(lines))
    (root / "events.jsonl").write_text("".join(lines[:2]))

    kinds = [entry.kind for entry in gather(root).timeline]

    assert kinds == ["run_started", "attempt_started", "checkpoint_saved"]


def test_events_of_strange_types_do_no_harm(tmp_path: Path) -> None:
    root = synthetic_run.healthy(tmp_path / "run")
    with (root / "events.jsonl").open("a") as journal:
        journal.write('{"kind": "worker_exited", "attempt": "x", "step": [], "time": {}}\n')
        journal.write('{"kind": "action", "step": "nan", "name": null, "cost_s": "soon"}\n')
        journal.write('{"kind": 7, "time": 1e999}\n{}\n')

    report = gather(root)

    assert report.end == "completed"


def test_what_was_tried_carries_its_outcome_and_is_listed_once(tmp_path: Path) -> None:
    interventions = gather(synthetic_run.treated(tmp_path / "run")).interventions

    assert [(one.name, one.outcome, one.undone_step) for one in interventions] == [
        ("skip_update", "applied", None),
        ("cut_lr", "helped", 195),
        ("restart", "attempt 2", None),
    ]


def test_the_statistics_verdict_on_an_anomaly_is_told(tmp_path: Path) -> None:
    report = gather(synthetic_run.treated(tmp_path / "run"))

    assert (
        report.anomalies[0].verdict == "The loss was not finite. The gradient norm was not finite."
    )
    assert report.anomalies[0].batch == "tokens 8×128"


def test_a_failure_that_comes_back_goes_before_a_kill_that_was_answered(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "run")
    run.start(1)
    run.steps(0, 60).checkpoint(50)
    run.exit("killed", 60, signum=9, returncode=-9)
    for attempt in (2, 3):
        run.wait(1.0).event("restart", step=50, next_attempt=attempt)
        run.attempt = attempt
        run.event("attempt_started", step=50, checkpoint_step=50)
        run.wait(2.0).exit("exception", None, evidence=("KeyError: 'label'",))
    root = run.finish("gave_up")

    report = gather(root)

    assert report.root_cause == "exception"
    assert "KeyError: 'label'" in report.verdict
    assert [attempt.from_step for attempt in report.attempts] == [None, 50, 50]
    assert report.cost.down_s == pytest.approx(6.0)


def test_an_anomaly_is_called_a_level_or_a_jump_and_a_bent_mean_is_told(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "run")
    log = AnomalyLog(run.rundir, 0)
    level = {"median": 2.0, "threshold": 3.0, "mean": 4.0, "relative_change": 0.1}
    jump = {"median": 1.0, "threshold": 2.5, "relative_change": 0.8}
    log.write(step=5, loss=9.0, grad_norm=1.0, threshold_info={"loss": level})
    log.write(step=6, loss=2.0, grad_norm=1.8, threshold_info={"grad_norm": jump})
    log.close()

    first, second = gather(run.rundir.root).anomalies

    assert "The loss was 9, above its threshold of 3 (median 2): an unusually high" in first.verdict
    assert "The mean (4) is far above the median" in first.verdict
    assert second.verdict == (
        "The gradient norm jumped: 1.8 is 80 % above the step before, though below its threshold."
    )


def test_a_run_that_reached_its_end_with_nan_is_not_called_overcome(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "run")
    run.start(1)
    run.steps(0, 60)
    run.steps(61, 99, losses=dict.fromkeys(range(61, 100), NAN))
    run.exit("completed", 99, returncode=0)
    root = run.finish("completed")

    report = gather(root)

    assert (report.title, report.root_cause) == ("Completed, not healthy", "nonfinite_loss")
    assert (
        "its last loss is not finite. The cause: at step 61 the loss became NaN" in report.verdict
    )
    assert not report.incidents[0].survived
    assert "Nothing has to be done" not in " ".join(report.next_steps)
    assert any("supervisor explain" in step for step in report.next_steps)
    assert "The last weights are of no use" in report.next_steps[-1]


def test_what_a_policy_would_have_done_is_no_treatment_and_helped_nothing(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "run")
    run.start(1)
    run.steps(0, 60)
    run.action("rollback", 40, outcome="would_have", applied=False)
    run.event("action", step=60, name="rollback", rung=None, cause=None, cost_s=0.0,
              outcome="helped", applied_at=40, phase="verified")  # fmt: skip
    run.exit("completed", 60, returncode=0)
    root = run.finish("completed")

    report = gather(root)

    assert [item.outcome for item in report.interventions] == ["would have"]
    assert "without a restart or a treatment" in report.verdict


@pytest.mark.parametrize(("last_kl", "survived"), [(0.0004, False), (3.0, True)])
def test_a_collapse_counts_until_the_latents_are_back(
    tmp_path: Path, last_kl: float, survived: bool
) -> None:
    run = SyntheticRun(tmp_path / "run")
    run.start(1)
    recorder = FlightRecorder(run.rundir.steps(0), attempt=1)
    for step, kl in enumerate([5.0] * 30 + [0.0005] * 10 + [last_kl]):
        record = StepRecord(step=step, loss=1.0, loss_seen=True, observed={"kl": kl})
        recorder.append(record, time=run.now + step)
    recorder.close()
    metadata = {"level": "red", "indicators": {"kl": 0.0005}, "lines": {"kl": 0.01}}
    run.event("alert", step=35, severity="high", category="collapse", cause="collapse",
              message="posterior collapse, red", metadata=metadata)  # fmt: skip
    run.exit("completed", 40, returncode=0)
    root = run.finish("completed")

    report = gather(root)

    assert report.root_cause == "collapse"
    assert report.incidents[0].survived is survived
    assert report.evidence == (f"The last values of the latents: kl {last_kl:g}.",)
    assert report.title == ("Completed" if survived else "Completed, not healthy")
    assert survived or report.setting == "in your script: the weight of the KL term"


def test_the_verdict_of_a_failure_says_where_the_script_stood(tmp_path: Path) -> None:
    hung = SyntheticRun(tmp_path / "hung")
    hung.start(1)
    hung.steps(0, 20)
    hung.event("hang_detected", step=20, frames=["get (loader.py:12)", "<module> (train.py:3)"],
               evidence=["no step for 60 s", "get (loader.py:12)"])  # fmt: skip
    hung.exit("hang", 20, evidence=("no step for 60 s; in get (loader.py:12)",))
    failed = SyntheticRun(tmp_path / "failed")
    failed.start(1)
    failed.steps(0, 20)
    failed.exit("exception", 20, evidence=("KeyError: 'x'",))
    trace = 'Traceback:\n  File "train.py", line 7, in main\n    x["x"]\n'
    write_json(failed.rundir.exit_note(1, 0), {"kind": "exception", "traceback": trace})

    of_hang = gather(hung.finish("gave_up"))
    of_failure = gather(failed.finish("gave_up"))

    assert "after step 20, in get (loader.py:12)" in of_hang.verdict
    assert of_hang.evidence[:2] == (
        "no step for 60 s",
        "The main thread was in get (loader.py:12), called from <module> (train.py:3).",
    )
    assert "KeyError: 'x' (train.py:7, in main)" in of_failure.verdict


@pytest.mark.parametrize(("last", "survived"), [(400.0, False), (2.5, True)])
def test_a_loss_that_stays_far_above_its_level_is_not_called_overcome(
    tmp_path: Path, last: float, survived: bool
) -> None:
    run = SyntheticRun(tmp_path / "run")
    run.start(1)
    run.steps(0, 120, losses={60: 5000.0} | dict.fromkeys(range(61, 121), last))
    run.event("alert", step=60, severity="critical", cause="spike", message="the loss 5000")
    run.exit("completed", 120, returncode=0)
    root = run.finish("completed")

    report = gather(root)

    assert report.incidents[0].survived is survived
    assert ("but it is not healthy" in report.verdict) is not survived
    assert (
        any("the trouble did not pass" in sentence for sentence in report.evidence) is not survived
    )


def test_steps_that_were_cut_off_are_counted(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "run")
    run.start(1)
    run.steps(0, 20)
    path = run.rundir.steps(0)
    os.truncate(path, HEADER_BYTES + 15 * ROW.size)

    problems = gather(run.rundir.root).problems

    assert any("its last 6 steps are missing" in problem for problem in problems)


def test_a_run_in_which_no_training_was_seen_is_not_called_one(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "run")
    run.start(1)
    run.exit("completed", None, returncode=0)

    facts = gather(run.finish("completed"))

    assert "no training step was seen" in facts.verdict
    assert "processes that the script starts" in facts.next_steps[0]
