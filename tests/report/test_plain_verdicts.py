"""The first lines of a report, read by somebody who has never seen one."""

from __future__ import annotations

import dataclasses
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from supervisor.report.gathering import gather
from supervisor.report.render import render_markdown
from supervisor.storage.files.private_files import write_json
from tests.report import synthetic_run
from tests.report.synthetic_run import SyntheticRun

JARGON = ("MAD", "sigma", "median +", "corpus", "predictor", "K2", "e+0", "noisy")


def begun(root: Path) -> SyntheticRun:
    run = SyntheticRun(root)
    run.start(1)
    return run


def test_a_spike_is_told_without_jargon_and_its_odds_stand_in_the_evidence(tmp_path: Path) -> None:
    run = begun(tmp_path / "run")
    run.steps(0, 120, losses={60: 4131.65})
    run.event("alert", step=60, severity="high", cause="spike",
              message="the loss 4131.65 is far above its usual (line 9.7); look at this step's batch")  # fmt: skip  # noqa: E501
    run.event("risk", step=60, probability=0.6, calibrated=0.494, alarm=True, cause="spike",
              reason="the loss of 4131.65 is 1,500 times its recent median")  # fmt: skip
    run.action("skip_update", 60, cause="spike", reason="the loss is 4131.65, its recent median 3")
    run.exit("completed", 120, returncode=0)

    report = gather(run.finish("completed"))

    assert "at step 60 the loss jumped to 4132, from the usual 3." in report.verdict
    assert not [word for word in JARGON if word in report.verdict]
    assert any("49% led to a crash within 20 steps" in line for line in report.evidence)


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("moved", "corrupted: head.weight[3, 1] is 1e+06, was 0.2 at step 50"),
        ("compute", "calculated wrongly: head.weight[3, 1] was 1e+06, and 0.2 each time"),
    ],
)
def test_what_was_proved_comes_before_the_signs_that_it_gave(
    tmp_path: Path, rule: str, words: str
) -> None:
    run = begun(tmp_path / "run")
    run.steps(0, 120, losses={58: 4131.65})
    run.event("alert", step=58, severity="high", cause="spike", message="the loss is far above")
    run.event("corruption_found", step=60, tensor="head.weight", elements=1, value=1e6, before=0.2,
              bound=0.3, bit=30, healed="in_place", index=[3, 1], from_step=50,
              rule=rule)  # fmt: skip
    run.exit("completed", 120, returncode=0)

    report = gather(run.finish("completed"))

    assert report.root_cause == "corruption"
    assert f"at step 60 memory or the device was at fault: {words}" in report.verdict


def test_the_data_that_a_restart_left_out_is_no_trouble_of_its_own(tmp_path: Path) -> None:
    run = begun(tmp_path / "run")
    for attempt in (1, 2, 3):
        if attempt > 1:
            run.event("restart", step=40, next_attempt=attempt, skip_steps=[60] * (attempt - 2))
            run.start(attempt, from_step=40)
        run.steps(0 if attempt == 1 else 41, 60)
        if attempt == 3:
            run.event("update_skipped", step=60, reason="it failed there before", source="order")
        run.exit("killed", 60, signum=signal.SIGKILL, evidence=("SIGKILL, from outside",))

    report = gather(run.finish("gave_up"))

    assert report.root_cause == "killed"
    assert [incident.key for incident in report.incidents] == ["killed"] * 3
    assert "3 times at the same step: the worker was killed by SIGKILL (signal 9)" in report.verdict
    assert report.next_steps[0].startswith("Look at what the script does after step 60")


def test_a_treatment_that_was_refused_is_not_where_trouble_began(tmp_path: Path) -> None:
    run = begun(tmp_path / "run")
    run.steps(0, 120, losses={60: 5000.0})
    run.action("back_to_start", 40, cause="divergence", outcome="refused", applied=False,
               reason="the loss went up with the first updates")  # fmt: skip
    run.action("skip_update", 60, cause="spike", reason="the loss is 5000, its recent median 3")
    run.exit("completed", 120, returncode=0)

    report = gather(run.finish("completed"))

    assert [(incident.key, incident.step) for incident in report.incidents] == [("loss_spike", 60)]


def test_a_sample_that_holds_nan_is_named_and_is_what_to_mend(tmp_path: Path) -> None:
    run = begun(tmp_path / "run")
    run.steps(0, 120, losses={60: float("nan")}, skipped=frozenset({60}))
    found = {"data": "TensorDataset of 640", "sample": "37", "error": "NaN", "found_at": 60}
    lines = [json.dumps({**found, "left_out": again}) for again in (False, True)]
    (run.rundir.root / "bad_samples.jsonl").write_text("\n".join(lines) + "\n")
    run.exit("completed", 120, returncode=0)

    report = gather(run.finish("completed"))

    assert "NaN: sample 37 of TensorDataset of 640 held NaN or infinity." in report.verdict
    assert "fix or remove sample 37 of TensorDataset of 640" in report.next_steps[1]


def test_what_came_back_until_older_weights_were_there_was_not_one_batch(tmp_path: Path) -> None:
    run = begun(tmp_path / "run")
    run.steps(0, 120, losses={60: 5000.0, 61: 6000.0}, skipped=frozenset({60}))
    run.action("skip_update", 60, cause="spike", reason="the loss is 5000, its recent median 3")
    run.action("rollback", 61, cause="spike", reason="the loss is 6000, its recent median 3")
    run.event("rollback", step=61, from_step=61, to_step=50)
    run.exit("completed", 120, returncode=0)

    report = gather(run.finish("completed"))

    assert "what changed the weights or the optimizer's state" in report.next_steps[1]


def test_a_hang_names_the_line_of_the_script_and_gives_a_setting_that_works(tmp_path: Path) -> None:
    run = begun(tmp_path / "run")
    run.state = dataclasses.replace(run.state, cwd="/home/me")
    run.steps(0, 20)
    frames = ["wait (/venv/site-packages/torch/a.py:5)", "main (/home/me/train.py:27)"]
    run.event("hang_detected", step=20, limit_s=90.0, frames=frames, evidence=["no step for 91 s"])
    run.exit("hang", 20, evidence=("no step for 91 s",))

    report = gather(run.finish("gave_up"))

    assert "at /home/me/train.py:27, which had called wait (/venv/" in report.verdict
    assert report.next_steps[1].endswith(": --set watchdog.hang_timeout_s=900")


@pytest.mark.parametrize(
    ("cause", "known", "told", "remedy"),
    [
        (
            "exception",
            {"sign": "no_space"},
            "a file could not be written (No space left on device) (train.py:7, in main)",
            "Free space on the disk (or raise the quota), then resume.",
        ),
        (
            "host_out_of_memory",
            {"asked_bytes": 68719476736},
            "64 GiB were asked for at once (train.py:7, in main)",
            "Ask for less memory at the line above, then resume.",
        ),
    ],
)
def test_what_a_machine_had_no_room_for_is_told_with_the_line(
    tmp_path: Path, cause: str, known: dict[str, Any], told: str, remedy: str
) -> None:
    run = begun(tmp_path / "run")
    run.steps(0, 20)
    run.exit(cause, 20, evidence=("it failed",), **known)
    trace = 'Traceback:\n  File "train.py", line 7, in main\n'
    write_json(run.rundir.exit_note(1, 0), {"kind": "exception", "traceback": trace})

    report = gather(run.finish("gave_up"))

    assert told in report.verdict
    assert report.next_steps[0] == remedy


def test_a_script_that_ended_itself_is_told_with_what_it_said_last(tmp_path: Path) -> None:
    run = begun(tmp_path / "run")
    run.rundir.log(1, 0).parent.mkdir(parents=True)
    run.rundir.log(1, 0).write_text("usage: train.py\ntrain.py: error: unknown option: --nope\n\n")
    said = ("the script ended with sys.exit(2)",)
    run.exit("user_error", None, returncode=2, evidence=said, sign="own_exit")

    report = gather(run.finish("failed"))

    told = "sys.exit(2), and said last: train.py: error: unknown option: --nope."
    assert report.verdict.endswith(told)


def test_a_loader_process_that_died_is_not_an_exception_to_mend(tmp_path: Path) -> None:
    run = begun(tmp_path / "run")
    run.steps(0, 20)
    run.exit("exception", 20, evidence=("RuntimeError: it died",), sign="loader_died")

    report = gather(run.finish("gave_up"))

    assert report.next_steps[0].startswith("A process that loads data died")


@pytest.mark.parametrize("cause", ["killed", "hang"])
def test_a_failing_device_is_told_with_what_nvml_saw(tmp_path: Path, cause: str) -> None:
    run = begun(tmp_path / "run")
    run.steps(0, 20)
    seen = "NVML: NVIDIA H100 (serial 1650): Xid 79: the device has fallen off the bus"
    run.exit(cause, 20, evidence=("SIGABRT", seen), sign="failing_device", device="NVIDIA H100")

    report = gather(run.finish("gave_up"))

    assert "while NVML saw a device's hardware fail" in report.verdict
    assert report.next_steps[0].startswith("Leave that device out (CUDA_VISIBLE_DEVICES)")
    assert seen in report.incidents[-1].evidence_for


def test_exits_of_an_older_version_without_signs_are_told_by_their_evidence(
    tmp_path: Path,
) -> None:
    run = begun(tmp_path / "run")
    run.steps(0, 20)
    run.exit("exception", 20, evidence=("OSError: No space left on device",))

    report = gather(run.finish("gave_up"))

    assert "OSError: No space left on device" in report.verdict
    assert report.next_steps[0] == "Fix the exception that is shown below, then resume."


def test_a_full_disk_is_told_where_only_the_workers_own_note_is_left(tmp_path: Path) -> None:
    run = begun(tmp_path / "run")
    run.steps(0, 20)
    trace = "Traceback:\nOSError: [Errno 122] Disk quota exceeded\n"
    note = {"kind": "exception", "message": "stream failed", "traceback": trace, "last_step": 20}
    write_json(run.rundir.exit_note(1, 0), note)

    report = gather(run.rundir.root)

    assert "Disk quota exceeded" in report.incidents[0].sentence


def test_a_learning_rate_that_rose_before_a_jump_is_the_cause_that_is_told(tmp_path: Path) -> None:
    run = begun(tmp_path / "run")
    rates = {step: 0.001 * 1.1**step for step in range(121)}
    run.steps(0, 120, losses=dict.fromkeys(range(60, 121), 5000.0), lrs=rates)
    run.action("skip_update", 60, cause="spike", reason="the loss is 5000, its recent median 3")
    run.exit("completed", 120, returncode=0)

    report = gather(run.finish("completed"))

    rise = "from 0.04526 to 0.2768 within"
    assert f"The cause: the learning rate rose {rise} 20 steps; at step 60" in report.verdict
    assert rise in report.next_steps[0]
    assert report.setting == "in your script: the warm-up of the learning rate"


def test_a_watched_run_says_what_another_policy_would_have_done(tmp_path: Path) -> None:
    run = begun(tmp_path / "run")
    run.steps(0, 60)
    run.action("cut_lr", 40, outcome="would_have", applied=False, reason="the loss climbed")
    run.exit("completed", 60, returncode=0)

    report = gather(run.finish("completed"))

    assert "treated it 1 time, first at step 40 (the loss climbed)." in report.verdict
    assert report.next_steps[-1] == "Next time, let it treat: leave out --policy observe_only."


def test_a_run_that_ended_sick_goes_back_to_a_checkpoint_that_is_still_there(
    tmp_path: Path,
) -> None:
    run = begun(tmp_path / "run")
    run.steps(0, 120, losses=dict.fromkeys(range(90, 121), float("nan")))
    run.checkpoint(20).checkpoint(40).checkpoint(60, stable=False).checkpoint(100, stable=False)
    for step in (40, 60, 100):  # that of step 20 was removed long ago
        folder = run.rundir.checkpoints / f"step_{step:08d}"
        folder.mkdir(parents=True)
        write_json(folder / "manifest.json", {"step": step, "stable": step == 40})
    run.exit("completed", 120, returncode=0)

    report = gather(run.finish("completed"))

    assert report.title == "Completed, not healthy"
    assert report.resume_command.endswith("run --from 40")
    assert any("those of step 40 are from before the trouble" in s for s in report.next_steps)


def test_a_divergence_names_a_rate_too_high_once(tmp_path: Path) -> None:
    report = gather(synthetic_run.gave_up(tmp_path / "run"))

    assert report.explosion is not None
    told = [cause for cause in report.explosion.likely_causes if "learning rate" in cause]
    assert told == [report.explosion.likely_causes[0]]


def test_a_cause_that_is_known_is_not_guessed_from_the_shape(tmp_path: Path) -> None:
    root = synthetic_run.gave_up(tmp_path / "run")
    found = gather(root).explosion
    assert found is not None
    assert len(found.likely_causes) > 1

    (root / "report").mkdir(exist_ok=True)
    write_json(root / "report" / "explain.json", {"root_cause": "optimizer_state"})
    explained = gather(root)

    assert explained.explosion is not None
    assert explained.explosion.likely_causes == ("optimizer state",)
    assert "known by controlled replay" in render_markdown(explained)


def test_a_treatment_that_helped_alone_tells_the_cause(tmp_path: Path) -> None:
    root = synthetic_run.gave_up(tmp_path / "run")  # treated with cut_lr
    journal = (root / "events.jsonl").read_bytes()
    run = SyntheticRun(root)
    run.rundir.journal.write_bytes(journal)
    run.event("action", step=170, name="cut_lr", phase="verified", outcome="helped", applied_at=160)
    run.set_state("gave_up")

    alone = gather(root).explosion
    run.action("fp32_fallback", 161)
    both = gather(root).explosion

    assert alone is not None
    assert alone.likely_causes == ("the learning rate is too high for this phase of the training",)
    assert alone.known_by == "cut_lr at step 160, which helped"
    assert both is not None
    assert both.known_by == ""  # nobody knows which of them it was
