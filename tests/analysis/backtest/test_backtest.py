from __future__ import annotations

import json
from pathlib import Path

import pytest

from supervisor.analysis.backtest.backtest import AlarmEdge, backtest, plot_backtest
from supervisor.analysis.backtest.trace import read_trace
from supervisor.config import load_policy
from supervisor.errors import UsageError
from supervisor.settings import RunSettings
from supervisor.testing import synthetic_run


def write_csv(path: Path, kind: str, steps: int = 300) -> Path:
    lines = ["step,loss,grad_norm,lr,loss_scale,entropy"]
    for r in synthetic_run(kind, steps):
        lines.append(f"{r.step},{r.loss},{r.grad_norm},{r.lr},,0.5")
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_csv_with_trouble_gives_the_contracts_document(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "trace.csv", "nan")

    document = backtest(path, RunSettings(), load_policy()).to_dict()

    assert json.loads(json.dumps(document)) == document
    assert document["steps"] == len(document["risk"]) == 300
    assert document["first_alarm"] == 150
    assert set(document["alarms"][0]) == {
        *("step", "risk", "calibrated", "reason", "contributions")
    }
    assert document["decisions"][0]["step"] == 150
    assert document["decisions"][0]["actions"] == ["skip_update"]
    assert document["decisions"][0]["rung"] == -1


def test_a_healthy_csv_gives_no_alarm(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "trace.csv", "healthy")

    result = backtest(path, RunSettings(), load_policy())

    assert result.first_alarm is None
    assert result.decisions == []


def test_empty_cells_were_not_seen_and_further_columns_are_observed(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(
        "step,loss,grad_norm,lr,loss_scale,kl,others_trained\n0,nan,,0.1,,0.5,\n1,2.0,inf,,8,,1\n\n"
    )

    first, second = read_trace(path)

    assert first.has_nonfinite_loss
    assert not first.grad_norm_seen
    assert first.observed == {"kl": 0.5}
    assert second.has_nonfinite_grad
    assert second.observed == {}
    assert (first.others_trained, second.others_trained) == (False, True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("step,loss\n0,oops\n", "line 2: column loss: 'oops' is no number"),
        ("a,b\n1,2\n", "no column is known as the loss"),
        ("", "it is empty"),
        ("step,loss\n0.5,1\n", "column step: '0.5'"),
        ("step,loss\n0,1,2\n", "line 2: 3 cells under 2 columns"),
        ("loss,loss\n1,2\n", "twice"),
    ],
)
def test_a_csv_without_a_step_is_refused_with_line_and_column(
    tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)

    with pytest.raises(UsageError) as error:
        backtest(path, RunSettings(), load_policy())

    assert said in str(error.value)
    assert str(path) in str(error.value)


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00\x01loss\n")

    for path in (tmp_path / "missing.csv", tmp_path, tmp_path / "binary.csv"):
        with pytest.raises(UsageError, match=str(path)):
            list(read_trace(path))


def test_a_trace_without_a_step_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("step,loss\n")

    with pytest.raises(UsageError, match="no step in it"):
        backtest(tmp_path / "t.csv", RunSettings(), load_policy())


def test_an_alarm_is_a_rising_edge_that_rearms_after_fifty_calm_steps() -> None:
    edge = AlarmEdge(0.5)

    raised = [edge.update(risk) for risk in [0.6, 0.6, 0.0, 0.6, *[0.1] * 49, 0.3, 0.6]]
    again = [edge.update(risk) for risk in [*[0.1] * 50, 0.3, 0.6]]

    assert raised.count(True) == 1
    assert again == [False] * 51 + [True]


def test_a_norm_that_was_never_logged_is_not_called_nan(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("step,loss\n" + "".join(f"{s},{1 + s % 3}\n" for s in range(60)) + "60,nan\n")

    result = backtest(path, RunSettings(), load_policy())

    assert [alarm.reason for alarm in result.alarms] == ["loss nan"]


def test_a_backtest_is_drawn(tmp_path: Path) -> None:
    result = backtest(write_csv(tmp_path / "t.csv", "nan"), RunSettings(), load_policy())

    plot_backtest(result, tmp_path / "plot.png")

    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_the_first_treatment_is_told_without_checkpoints(tmp_path: Path) -> None:
    """A start that failed is begun anew, after the alarm of its first rows."""
    lines = [f"{step},{1.0 if step < 2 else 900.0},1.0" for step in range(80)]
    (tmp_path / "t.csv").write_text("step,loss,grad_norm\n" + "\n".join(lines) + "\n")

    document = backtest(tmp_path / "t.csv", RunSettings(), load_policy()).to_dict()

    treated = [d["step"] for d in document["decisions"] if set(d["actions"]) - {"checkpoint"}]
    assert document["first_treatment"] == treated[0]
    assert document["first_alarm"] == 5 < treated[0]


def test_the_loss_of_a_run_with_a_reward_is_judged_only_where_the_user_says_so(
    tmp_path: Path,
) -> None:
    losses = [1.0 + 0.01 * (i % 3) for i in range(200)] + [90.0] * 20
    rows = (f"{i},{loss},{i / 10}\n" for i, loss in enumerate(losses))
    path = tmp_path / "progress.csv"
    path.write_text("step,train/loss,reward\n" + "".join(rows))

    by_reward = backtest(path, RunSettings(), load_policy())
    by_loss = backtest(path, RunSettings(in_environment=False), load_policy())

    assert by_reward.first_alarm is None
    assert by_loss.first_alarm is not None
    assert by_loss.first_alarm >= 200
    assert len(by_reward.reward.steps) == 220
