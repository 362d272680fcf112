"""A mistake that was told stands in the report, once a kind, and is no trouble of the numbers."""

from __future__ import annotations

from pathlib import Path

from supervisor.codes import Cause, Severity
from supervisor.events.step_events import AlertEvent
from supervisor.report.facts.crash_report import find_mistakes
from supervisor.report.gathering import gather
from supervisor.report.render import render_html
from tests.report.synthetic_run import SyntheticRun


def _alert(step: int, category: str, kind: str) -> AlertEvent:
    return AlertEvent(
        step=step,
        detector="mistakes",
        severity=Severity.HIGH,
        category=category,
        cause=Cause.OTHER,
        message=f"train.py:3: {kind}. Mend: x",
        fact=f"train.py:3: {kind}",
        value=float("nan"),
        threshold=float("nan"),
        metadata={"where": "train.py:3", "mend": "x"},
        alert_kind=kind,
    )


def test_each_kind_of_mistake_stands_there_once_with_its_first_step() -> None:
    events = [
        _alert(2, "mistake", "stretched_loss"),
        _alert(3, "loss", "loss_spike"),
        _alert(20, "mistake", "trained_by_nothing"),
        _alert(30, "mistake", "stretched_loss"),
    ]

    found = find_mistakes(events)

    assert [(one.kind, one.step) for one in found] == [
        ("stretched_loss", 2),
        ("trained_by_nothing", 20),
    ]
    assert found[0].where == "train.py:3"
    assert found[0].message == "train.py:3: stretched_loss"


def spiked(folder: Path, kind: str) -> Path:
    """A loss that has jumped, in a run in which a mistake was told before."""
    run = SyntheticRun(folder)
    run.start(1)
    run.steps(0, 120, losses={60: 5000.0} | dict.fromkeys(range(61, 121), 900.0))
    run.event("alert", step=21, severity="high", category="mistake", alert_kind=kind,
              message=f"train.py:3: {kind}", fact=f"train.py:3: {kind}")  # fmt: skip
    run.event("alert", step=60, severity="critical", cause="spike", message="the loss 5000")
    run.exit("completed", 120, returncode=0)
    return run.finish("completed")


def test_a_mistake_that_makes_a_training_diverge_is_its_root_cause(tmp_path: Path) -> None:
    explained = gather(spiked(tmp_path / "one", "gradients_never_cleared"))
    other = gather(spiked(tmp_path / "other", "training_in_eval_mode"))

    assert explained.root_cause == "mistake"
    assert "The script's mistake explains what followed" in explained.root_cause_sentence
    assert "step 21: train.py:3: gradients_never_cleared" in explained.verdict
    assert other.root_cause == "loss_spike"
    assert [one.kind for one in other.mistakes] == ["training_in_eval_mode"]


def test_a_calm_run_with_a_mistake_is_not_green_and_says_what_to_mend(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path)
    run.start(1)
    run.steps(0, 120)
    for step, kind in ((5, "stretched_loss"), (20, "trained_by_nothing"), (30, "stretched_loss")):
        run.event("alert", step=step, severity="high", category="mistake", alert_kind=kind,
                  message="long", fact=f"train.py:3: {kind}", metadata={"mend": "x"})  # fmt: skip
    run.event("alert", step=31, severity="low", category="question", alert_kind="rate",
              message="long", fact="train.py:9: a rate", metadata={"mend": "y"})  # fmt: skip
    run.exit("completed", 120, returncode=0)
    root = run.finish("completed")

    report, page = gather(root), render_html(gather(root))

    assert report.title == "Completed, a mistake in the script"
    assert report.root_cause == "mistake"
    assert report.first_lines[0].endswith("but not all is well: a mistake in the script")
    assert [one.step for one in report.shortfalls] == [5, 20]
    assert all("Nothing" not in step for step in report.next_steps)
    assert "on_purpose=[stretched_loss]" in report.next_steps[0]
    assert 'class="badge warn"' in page
    assert page.count("On purpose? Seen at step 31: train.py:9: a rate") == 1
