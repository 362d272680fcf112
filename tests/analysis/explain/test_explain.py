"""Trainings with a known cause of trouble: the replays find it."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from supervisor.analysis.explain.changes import next_dose
from supervisor.analysis.explain.explain import Explanation, explain
from supervisor.analysis.explain.onset import Trouble, first_trouble, rate_jump
from supervisor.analysis.explain.replay import NEVER, faults_to_repeat
from supervisor.analysis.explain.rules import (
    CHANGES,
    CLIPPED,
    FP32,
    FRESH_OPTIMIZER,
    LATER_BATCHES,
    LR_BEFORE,
    LR_DIVIDED,
    LR_HALF,
    LR_TENTH,
    OLD_WEIGHTS,
    OTHER_SEED,
    RATE_ZERO,
    RESHUFFLED,
    TELLING,
    UNCHANGED,
    USUAL_WEIGHTS,
    WITHOUT_BATCH,
    Effect,
    diagnose,
    effect_of,
    is_settled,
)
from supervisor.errors import SupervisorError
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps.step_rows import LOSS_SEEN, STEP_DTYPE
from tests.analysis.sick_scripts import (
    BAD_SAMPLE,
    BAD_SCHEDULE,
    EXTREME_RATE,
    OTHER_UNITS,
    OVERSIZED_WEIGHTS,
    SOUND,
    sick_script,
)
from tests.journals import event
from tests.scenarios.runs import Ended, again, supervised

pytestmark = pytest.mark.timeout(400)
"""Several processes one after another: minutes on a machine that is busy otherwise."""

SAME = {name: Effect.SAME for name in CHANGES if name != UNCHANGED}
CURES = {
    "data": ({WITHOUT_BATCH: Effect.CURED, RESHUFFLED: Effect.MOVED}, 0.9),
    "precision": ({FP32: Effect.CURED}, 0.9),
    "learning_rate": ({LR_HALF: Effect.CURED, LR_TENTH: Effect.CURED}, 0.9),
    "optimizer_state": ({FRESH_OPTIMIZER: Effect.CURED, OLD_WEIGHTS: Effect.CURED}, 0.9),
    "weights": ({OLD_WEIGHTS: Effect.CURED}, 0.8),
    "model_code": ({}, 0.7),
    "unknown": ({OTHER_SEED: Effect.CURED}, 0.0),
}


def _run(folder: Path, text: str, faults: str = "", stop: int = 90) -> Ended:
    settings = (
        "checkpoint.every_steps=50",
        "checkpoint.background=false",
        f"stop_after_steps={stop}",
    )
    return supervised(folder, text, settings=settings, faults=faults)


def _digests(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file() and "report" not in path.parts]
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def _crashed(explanation: Explanation) -> dict[str, int | None]:
    return {replay.change: replay.at_step for replay in explanation.replays}


def test_a_poisoned_sample_is_found_and_the_run_left_as_it_was(tmp_path: Path) -> None:
    ended = _run(tmp_path, BAD_SAMPLE)
    before = _digests(tmp_path)

    found = explain(RunDirectory(ended.run_dir), changes=(WITHOUT_BATCH, RESHUFFLED))

    crashed = _crashed(found)
    assert found.root_cause == "data"
    assert (found.onset_step, found.sample) == (60, 3)
    assert crashed[UNCHANGED] == 60
    assert crashed[WITHOUT_BATCH] is None
    assert crashed[RESHUFFLED] != 60
    assert _digests(tmp_path) == before
    written = json.loads((ended.run_dir / "report" / "explain.json").read_text())
    assert written["root_cause"] == "data"


@pytest.mark.parametrize("loads", [pytest.param(True, marks=pytest.mark.exhaustive), False])
def test_a_gradient_that_the_script_spoils_at_a_step_is_not_blamed_on_the_data(
    tmp_path: Path, loads: bool
) -> None:
    ended = _run(tmp_path, SPOILED.replace("BATCH", "pass" if loads else DRAWN))
    told: list[str] = []

    found = explain(
        RunDirectory(ended.run_dir),
        changes=(WITHOUT_BATCH, RESHUFFLED, OTHER_SEED),
        say=told.append,
    )

    assert found.root_cause == "model_code", found
    assert found.onset_step == 60
    if loads:
        assert _crashed(found)[LATER_BATCHES] == 60
        assert "not the batch, but what the code does at this step" in found.summary
    else:
        assert "does not get its batches from a loader" in "\n".join(told)
        assert "given the number nan by the code" in found.summary


DRAWN = "i = torch.randint(0, 256, (16,)); x, y = X[i], Y[i]"
SPOILED = """
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
X = torch.randn(256, 8); Y = X @ torch.randn(8, 4)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
step = 0
for epoch in range(6):
    for x, y in DataLoader(TensorDataset(X, Y), 16, shuffle=True):
        BATCH
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad(); loss.backward()
        if step == 60: model[0].weight.grad.fill_(float("nan"))
        optimizer.step(); step += 1
"""


def test_a_jump_of_the_scripts_own_schedule_is_the_learning_rate(tmp_path: Path) -> None:
    ended = _run(tmp_path, BAD_SCHEDULE)

    found = explain(RunDirectory(ended.run_dir), changes=(LR_TENTH,))

    assert found.root_cause == "learning_rate", found
    assert 60 <= found.onset_step <= 70


def test_a_corrupted_second_moment_is_the_optimizers_state(tmp_path: Path) -> None:
    ended = _run(tmp_path, SOUND, "[{kind: second_moment, step: 60, factor: 1.0e-9}]")

    found = explain(RunDirectory(ended.run_dir), changes=(FRESH_OPTIMIZER,))

    assert found.root_cause == "optimizer_state", found


def test_what_an_identical_replay_does_not_repeat_was_transient(tmp_path: Path) -> None:
    ended = _run(tmp_path, SOUND, "[{kind: nan_gradient, step: 60, transient: true}]")

    done = again(ended, "explain", "run", "--json")

    result = json.loads(done.stdout)
    assert result["root_cause"] == "transient", done.stdout + done.stderr
    assert result["replays"] == [{"change": UNCHANGED, "crashed": False, "at_step": None}]
    assert set(result) == {
        "root_cause",
        "confidence",
        "replays",
        "onset_step",
        "sample",
        "module",
        "operation",
        "rank",
        "ranks",
        "summary",
        "precision",
    }


def test_a_hang_that_comes_again_is_not_waited_for_to_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = sick_script(before="if step == 60: import time; time.sleep(1000)")
    limits = ("watchdog.hang_timeout_s=3", "watchdog.stack_interval_s=0.5", "restart.crash_limit=1")
    ended = supervised(tmp_path, script, settings=("checkpoint.every_steps=50", *limits))
    monkeypatch.setattr("supervisor.analysis.explain.explain.HANG_S", 10.0)
    began_s = time.monotonic()

    found = explain(RunDirectory(ended.run_dir))

    assert time.monotonic() - began_s < 60.0
    assert (found.root_cause, found.onset_step) == ("unknown", 60)
    assert "stands still as well" in found.summary


@pytest.mark.parametrize("cause", CURES)
def test_what_cures_it_is_the_cause(cause: str) -> None:
    changed, least = CURES[cause]

    diagnosis = diagnose(SAME | changed, steps_to_crash=30)

    assert diagnosis.root_cause == cause
    assert diagnosis.confidence >= least


@pytest.mark.parametrize(
    ("is_sudden", "cause"), [(True, "optimizer_state"), (False, "learning_rate")]
)
def test_what_both_a_fresh_state_and_half_the_rate_cure_is_told_by_its_pace(
    is_sudden: bool, cause: str
) -> None:
    cured = dict.fromkeys((FRESH_OPTIMIZER, LR_HALF, LR_TENTH), Effect.CURED)

    diagnosis = diagnose(SAME | cured, steps_to_crash=30, is_sudden=is_sudden)

    assert diagnosis.root_cause == cause


@pytest.mark.parametrize(
    ("effects", "steps", "cause"),
    [
        (SAME, 1, "weights"),
        ({WITHOUT_BATCH: Effect.CURED}, 30, "data"),
        ({CLIPPED: Effect.CURED, LR_HALF: Effect.SAME}, 30, "learning_rate"),
        (SAME | {LR_BEFORE: Effect.CURED}, 30, "learning_rate"),
        (SAME | {LR_TENTH: Effect.MOVED, CLIPPED: Effect.MOVED}, 30, "learning_rate"),
        (SAME | {"lr/1000": Effect.CURED}, 30, "learning_rate"),
        (SAME | {"lr/100000000": Effect.CURED}, 30, "learning_rate"),
        (SAME | {"lr/1000": Effect.CURED, OLD_WEIGHTS: Effect.CURED}, 30, "weights"),
        (SAME | {RATE_ZERO: Effect.CURED}, 30, "model_code"),
        (SAME | {USUAL_WEIGHTS: Effect.CURED}, 0, "weights"),
        (SAME | {LATER_BATCHES: Effect.CURED}, 30, "data"),
        (SAME | {RESHUFFLED: Effect.MOVED}, 30, "data"),
        (SAME | {WITHOUT_BATCH: Effect.CURED, LATER_BATCHES: Effect.SAME}, 30, "model_code"),
        (SAME | {WITHOUT_BATCH: Effect.CURED, LATER_BATCHES: Effect.CURED}, 30, "data"),
        (dict.fromkeys(SAME, Effect.CURED), 30, "learning_rate"),
        ({}, 30, "unknown"),
    ],
)
def test_few_or_odd_effects_still_give_a_cause(
    effects: Mapping[str, Effect], steps: int, cause: str
) -> None:
    diagnosis = diagnose(effects, steps_to_crash=steps)

    assert diagnosis.root_cause == cause


@pytest.mark.parametrize(
    ("effects", "settled"),
    [
        ({FP32: Effect.CURED}, True),
        ({WITHOUT_BATCH: Effect.CURED, RESHUFFLED: Effect.MOVED}, True),
        ({LR_TENTH: Effect.CURED}, False),
        ({LR_TENTH: Effect.CURED, LR_HALF: Effect.CURED}, True),
        ({FRESH_OPTIMIZER: Effect.CURED, LR_HALF: Effect.SAME}, True),
        ({}, False),
    ],
)
def test_replays_that_cannot_change_the_answer_are_left_out(
    effects: Mapping[str, Effect], settled: bool
) -> None:
    telling = dict.fromkeys(TELLING, Effect.SAME)

    assert is_settled(telling | effects) is settled
    assert not is_settled({FP32: Effect.CURED})


def test_the_rate_is_divided_until_it_is_cured_if_a_rate_of_zero_cures() -> None:
    effects = SAME | {RATE_ZERO: Effect.CURED}
    made: list[str] = []

    while dose := next_dose(effects, made, onset=30, first_step=20, crash=30):
        made.append(dose.name)
        cures = float(dose.experiment["lr_factor"]) < 2e-5
        effects[dose.name] = Effect.CURED if cures else Effect.SAME

    assert made == ["lr/100", "lr/1000", "lr/10000", "lr/100000"]
    assert "lr/100000" in diagnose(effects, steps_to_crash=10).because


def test_the_division_ends_where_nothing_cures() -> None:
    made: list[str] = []

    while dose := next_dose(SAME | {RATE_ZERO: Effect.CURED}, made, onset=9, first_step=0, crash=9):
        made.append(dose.name)

    assert made == list(LR_DIVIDED)


@pytest.mark.parametrize(
    ("effects", "crash", "made"),
    [
        (SAME, 0, [USUAL_WEIGHTS, LATER_BATCHES]),
        (SAME, 30, [LATER_BATCHES]),
        (SAME | {LR_HALF: Effect.CURED}, 0, []),
        (SAME | {LR_HALF: Effect.CURED, RATE_ZERO: Effect.CURED}, 0, []),
        ({WITHOUT_BATCH: Effect.SAME}, 0, []),
    ],
)
def test_what_a_rate_of_zero_does_not_cure_lies_in_the_first_weights_or_the_batches(
    effects: Mapping[str, Effect], crash: int, made: list[str]
) -> None:
    tried: list[str] = []

    while dose := next_dose(effects, tried, onset=crash, first_step=0, crash=crash):
        tried.append(dose.name)

    assert tried == made


@pytest.mark.parametrize(
    ("text", "cause", "told"),
    [
        pytest.param(EXTREME_RATE, "learning_rate", "lr/100", marks=pytest.mark.exhaustive),
        pytest.param(OVERSIZED_WEIGHTS, "weights", "initialisation", marks=pytest.mark.exhaustive),
        pytest.param(OTHER_UNITS, "data", "healthy batch", marks=pytest.mark.exhaustive),
    ],
)
def test_a_number_wrong_by_orders_of_magnitude_is_found_by_dose(
    tmp_path: Path, text: str, cause: str, told: str
) -> None:
    ended = _run(tmp_path, text)

    found = explain(RunDirectory(ended.run_dir))

    assert found.root_cause == cause, found
    assert told in found.summary


def test_a_crash_a_few_steps_off_is_the_same_one() -> None:
    assert effect_of(LR_HALF, 63, 60, 0) is Effect.SAME
    assert effect_of(RESHUFFLED, 52, 60, 0) is Effect.MOVED
    assert effect_of(WITHOUT_BATCH, 65, 60, 2) is Effect.SAME
    assert effect_of(WITHOUT_BATCH, 80, 60, 2) is Effect.MOVED
    assert effect_of(FP32, None, 60, 0) is Effect.CURED


def test_faults_of_the_machine_do_not_strike_again() -> None:
    faults = [
        {"kind": "nan_loss", "step": 70},
        {"kind": "nan_loss", "step": 10},
        {"kind": "sigkill", "step": 70},
        {"kind": "weight", "step": 70, "transient": True},
    ]
    strikes = {"0:nan_loss:70": 1, "1:nan_loss:10": 1}

    counts = faults_to_repeat(faults, strikes, 50)

    assert counts == {"1:nan_loss:10": 1, "2:sigkill:70": NEVER, "3:weight:70": NEVER}


def test_the_onset_is_that_of_the_alarm_before_the_first_bad_step() -> None:
    rows = np.zeros(10, STEP_DTYPE)
    rows["step"], rows["flags"] = np.arange(10), LOSS_SEEN
    rows["loss"][8] = np.nan
    alarm = event("risk", alarm=True, step=7, onset_step=5)

    trouble = first_trouble(rows, [alarm])

    assert trouble == Trouble(onset_step=5, crash_step=8, what="not finite")


def test_a_jump_of_the_learning_rate_counts_while_it_is_near() -> None:
    rows = np.zeros(60, STEP_DTYPE)
    rows["step"], rows["lr"] = np.arange(60), np.where(np.arange(60) < 30, 0.01, 10.0)

    assert rate_jump(rows, 31) == (30, 0.001)
    assert rate_jump(rows, 30) is None
    assert rate_jump(rows, 59) is None


def test_a_process_that_failed_is_a_trouble_without_numbers() -> None:
    exits = [event("worker_exited", cause="killed", last_step=41)]

    trouble = first_trouble(np.zeros(0, STEP_DTYPE), exits)

    assert trouble == Trouble(onset_step=42, crash_step=42, what="killed")


@pytest.mark.parametrize(
    ("journal", "message"),
    [
        ('{"kind": "attempt_started", "attempt": 1}\n', "nothing went wrong in this run"),
        ("no JSON\n", "no event that can be read"),
    ],
)
def test_a_run_that_cannot_be_explained_is_refused_in_one_line(
    tmp_path: Path, journal: str, message: str
) -> None:
    (tmp_path / "events.jsonl").write_text(journal)
    (tmp_path / "run.json").write_text("{}")

    with pytest.raises(SupervisorError, match=message):
        explain(RunDirectory(tmp_path))


@pytest.mark.parametrize(
    ("effects", "said"),
    [
        ({WITHOUT_BATCH: Effect.CURED}, "nothing else was tried"),
        (
            {WITHOUT_BATCH: Effect.CURED, LR_TENTH: Effect.SAME, RESHUFFLED: Effect.SAME},
            "with none of the 2 other changes made",
        ),
        ({WITHOUT_BATCH: Effect.SAME}, "with the one change that was made"),
    ],
)
def test_a_diagnosis_says_no_more_than_was_tried(effects: dict[str, Effect], said: str) -> None:
    found = diagnose(effects, steps_to_crash=30)

    assert said in found.because
    assert found.confidence <= 0.6
