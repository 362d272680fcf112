from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from supervisor.analysis.backtest.backtest import backtest
from supervisor.analysis.backtest.trace import read_trace
from supervisor.config import load_policy
from supervisor.predictor import CrashPredictor
from supervisor.records import CrashRisk, StepRecord
from supervisor.risk_lines import RiskLines
from supervisor.settings import RunSettings


def losses(count: int, seed: int = 0) -> list[float]:
    noise = random.Random(seed)
    return [(0.5 + 2.0 * 0.99**step) * noise.lognormvariate(0, 0.05) for step in range(count)]


def resumed(factor: float, *, back: int = 120, crash: int = 200, rows: int = 40) -> list[CrashRisk]:
    """The risks of the first rows after a resume at step `back`, in a live run."""
    predictor = CrashPredictor(RiskLines(warn=0.3, alarm=0.5))
    for step, loss in enumerate(losses(crash)):
        predictor.update(StepRecord(step=step, loss=loss, loss_seen=True), {})
    again = [factor * loss for loss in losses(crash, 1)[back : back + rows]]
    return [
        predictor.update(StepRecord(step=back + n, loss=loss, loss_seen=True, restarted=n == 0), {})
        for n, loss in enumerate(again)
    ]


def test_a_resume_that_lost_something_is_told_within_ten_rows_with_its_checkpoint() -> None:
    risks = resumed(1.4)

    told = [risk for risk in risks[:10] if "lost_at_restart" in risk.contributions]
    assert told
    assert told[0].alarm
    assert told[0].reason.startswith(
        "the resume from checkpoint step_00000120 at step 120 did not bring back what was there"
    )


def test_a_resume_that_brought_all_back_is_not_told() -> None:
    assert not any("lost_at_restart" in risk.contributions for risk in resumed(1.0))


@pytest.mark.parametrize("column", [False, True])
def test_a_logs_restart_is_a_step_that_goes_back_or_a_column(tmp_path: Path, column: bool) -> None:
    before, after = losses(200), [1.5 * loss for loss in losses(200, 1)[120:160]]
    start = 200 if column else 120
    rows = [f"{step},{loss}," for step, loss in enumerate(before)]
    if column:
        after = [1.5 * loss for loss in losses(260, 1)[200:240]]
    rows += [f"{start + n},{loss},{int(column and n == 0)}" for n, loss in enumerate(after)]
    path = tmp_path / "log.csv"
    path.write_text("step,loss,restart\n" + "\n".join(rows) + "\n")

    (alarm,) = backtest(path, RunSettings(), load_policy()).alarms

    assert start <= alarm.step <= start + 10
    assert f"the resume at step {start} did not bring back what was there" in alarm.reason
    assert [r.step for r in read_trace(path) if r.restarted] == [start]


def test_the_level_is_that_of_the_step_gone_back_to_not_of_the_crash(tmp_path: Path) -> None:
    """The run had diverged by then: what came after the checkpoint is undone."""
    first = [*losses(150), *[9.0] * 30]
    path = tmp_path / "log.csv"
    rows = [*enumerate(first), *((120 + n, 2.5 * x) for n, x in enumerate(losses(150)[120:]))]
    path.write_text("step,loss\n" + "".join(f"{step},{loss}\n" for step, loss in rows))

    risk = backtest(path, RunSettings(), load_policy()).risk

    assert max(risk[len(first) : len(first) + 10]) == 0.55


def test_a_copy_of_the_state_goes_on_alike_and_an_older_one_is_readable() -> None:
    first = CrashPredictor(RiskLines(warn=0.3, alarm=0.5))
    for step, loss in enumerate(losses(100)):
        first.update(StepRecord(step=step, loss=loss, loss_seen=True), {})
    state = json.loads(json.dumps(first.state_dict()))
    copy = CrashPredictor(RiskLines(warn=0.3, alarm=0.5))
    copy.load_state_dict(state)
    older = CrashPredictor(RiskLines(warn=0.3, alarm=0.5))
    for name in ("first_rows", "relapse", "restart"):
        del state[name]
    for part in (state["loss"], state["grad"]):
        part["scale"] = {"first": part["scale"]["first"]}
    older.load_state_dict(state)

    record = StepRecord(step=90, loss=9.0, loss_seen=True, restarted=True)
    risks = [predictor.update(record, {}) for predictor in (first, copy)]

    assert risks[0] == risks[1]
    assert older.update(record, {}).contributions["loss_leap"] == 0.6
