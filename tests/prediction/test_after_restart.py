from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from supervisor.analysis.backtest.backtest import backtest
from supervisor.analysis.backtest.trace import read_trace
from supervisor.config import load_config, load_policy
from supervisor.pipeline import Pipeline
from supervisor.records import CrashRisk, StepRecord
from supervisor.settings import RunSettings

BACK, CRASH = 120, 200


def losses(count: int, seed: int = 0) -> list[float]:
    noise = random.Random(seed)
    return [(0.5 + 2.0 * 0.99**step) * noise.lognormvariate(0, 0.05) for step in range(count)]


def records(values: list[float], start: int = 0) -> list[StepRecord]:
    return [StepRecord(step=start + n, loss=x, loss_seen=True) for n, x in enumerate(values)]


def resumed(factor: float, *, announced: bool = False) -> list[CrashRisk]:
    """The risks of the first rows of a live run's next process, which begins with the windows of
    its checkpoint."""
    first, second = (Pipeline(load_config(), load_policy()) for _ in range(2))
    list(first.update_all(records(losses(BACK))))
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    second.resumed(BACK, "step_00000120")
    after = records([factor * loss for loss in losses(BACK + 40, 1)[BACK:]], BACK)
    after[0].announced = announced
    return [judgement.risk for judgement in second.update_all(after)]


def test_a_resume_that_lost_something_is_told_within_ten_rows_with_its_checkpoint() -> None:
    risks = resumed(1.4)

    told = [risk for risk in risks if "lost_at_restart" in risk.contributions]
    assert BACK <= told[0].step < BACK + 10
    assert told[0].alarm
    assert told[0].reason.startswith(
        "the resume from checkpoint step_00000120 at step 120 did not bring back what was there"
    )


def test_a_resume_that_brought_all_back_is_not_told() -> None:
    assert not any(risk.probability for risk in resumed(1.0))


def test_behind_an_announced_change_there_is_no_level_to_compare_with() -> None:
    assert not any(risk.probability for risk in resumed(10.0, announced=True))


def write_log(path: Path, values: list[float], again: list[float], start: int, *, mark: int) -> int:
    """Returns the number of the first row after the restart."""
    rows = [f"{step},{loss}," for step, loss in enumerate(values)]
    rows += [f"{start + n},{loss},{mark * (n == 0)}" for n, loss in enumerate(again)]
    path.write_text("step,loss,restart\n" + "\n".join(rows) + "\n")
    return len(values)


@pytest.mark.parametrize(("start", "mark"), [(BACK, 0), (CRASH, 1)])
def test_a_logs_restart_is_a_step_that_goes_back_or_a_column(
    tmp_path: Path, start: int, mark: int
) -> None:
    path = tmp_path / "log.csv"
    again = [1.5 * loss for loss in losses(start + 40, 1)[start:]]
    write_log(path, losses(CRASH), again, start, mark=mark)

    (alarm,) = backtest(path, RunSettings(), load_policy()).alarms

    assert start <= alarm.step <= start + 10
    assert f"the resume at step {start} did not bring back what was there" in alarm.reason
    assert [r.step for r in read_trace(path) if r.restarted] == [start]


@pytest.mark.parametrize("every", [1, 100])
def test_the_level_is_that_of_the_step_gone_back_to_not_of_the_crash(
    tmp_path: Path, every: int
) -> None:
    """The run had diverged by then: what came after the checkpoint is undone."""
    path = tmp_path / "log.csv"
    values = [*losses(150), *[9.0] * 30]
    rows = [*enumerate(values), *((BACK + n, 1.4 * x) for n, x in enumerate(losses(150)[BACK:]))]
    path.write_text("step,loss\n" + "".join(f"{every * step},{x}\n" for step, x in rows))

    result = backtest(path, RunSettings(), load_policy())

    assert max(result.risk[180:190]) == 0.55


def test_a_log_of_several_runs_is_judged_as_several(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    write_log(path, losses(CRASH), losses(CRASH, 1), 0, mark=0)

    assert backtest(path, RunSettings(), load_policy()).alarms == []


def test_a_copy_of_the_state_goes_on_alike() -> None:
    first = Pipeline(load_config(), load_policy())
    list(first.update_all(records(losses(100))))
    first.resumed(100)
    first.update(StepRecord(step=100, loss=1.9, loss_seen=True))
    state = json.loads(json.dumps(first.state_dict()))
    copy = Pipeline(load_config(), load_policy())
    copy.load_state_dict(state)

    after = records([1.9, 1.9, 1.9], 101)
    risks = [[j.risk for j in pipeline.update_all(after)] for pipeline in (first, copy)]

    assert risks[0] == risks[1]
    assert "lost_at_restart" in risks[0][-1].contributions
