"""Every loop style, undisturbed and killed: the weights are those of plain python to the bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.loop_styles import ENDING, LOOP_STYLES, PRELUDE, script
from tests.scenarios.runs import Ended, differences, supervised, train_plainly

STYLES = list(LOOP_STYLES)
NEAR_ANOTHER = frozenset(
    {
        "infinite iterator with next",
        "distributed sampler with set_epoch",
        "iterable dataset",
        "schedule by hand",
        "scaler that overflows",
        "averaged model of torch",
        "gradient penalty",
        "recurrent state carried over",
        "batch normalisation and running figures",
        "weights without a module",
        "progress bar",
        "variational autoencoder",
        # What follows is in the generated programs, or in scenarios of its own.
        "endless loop with a prefetched batch",
        "evaluation inside, plateau schedule, early stopping",
        "schedule by object with warm-up",
        "weight average by hand",
        "LBFGS with a closure",
        "everything inside functions and a class",
        "optimizer around another",
        "compiled model",
        "persistent loader workers",
        "policy gradient",
    }
)
CASES = [
    pytest.param(style, marks=[pytest.mark.exhaustive] if style in NEAR_ANOTHER else [])
    for style in STYLES
]
CHECKPOINTS = ("checkpoint.every_steps=4",)
KILLED = (*CHECKPOINTS, "checkpoint.background=false")
"""What is due is on disk when the kill comes: the same resume every time."""
PLACES = {
    "first step": "{step: 0}",
    "checkpoint step": "{step: 7}",
    "step after a checkpoint": "{step: 8}",
    "in a forward": "{step: 10, moment: forward}",
    "in a backward, gradients half summed": "{step: 9, moment: backward}",
    "before an update": "{step: 6, moment: update}",
    "in an evaluation": "{step: 8, moment: evaluation, every: true}",
    "twice": "{step: 5}, {kind: sigkill, step: 9}",
}
RESUMED_FROM = {"first step": [], "in a backward, gradients half summed": [8], "twice": [4, 8]}
"""Steps of the checkpoints that must be used, where every style has them."""

NO_SUCH_MOMENT = {
    # The injector stands between gradients and update; here both are inside the optimizer's step.
    ("LBFGS with a closure", "before an update"),
    # A forward is the call of a module.
    ("weights without a module", "in a forward"),
    # Their no_grad is around the average: nothing is evaluated.
    ("weight average by hand", "in an evaluation"),
    ("optimizer around another", "in an evaluation"),
}


def _places(style: str, every: bool) -> list[str]:
    """One place a style, another for each, so that all are struck; or all of them."""
    names = [name for name in PLACES if name != "in an evaluation" or "no_grad" in script(style)]
    if not every:
        return [names[STYLES.index(style) % len(names)]]
    return [name for name in names if (style, name) not in NO_SUCH_MOMENT]


@pytest.mark.parametrize("style", CASES)
@pytest.mark.timeout(1800)
def test_every_run_ends_with_the_weights_of_plain_python(
    style: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    expected = train_plainly(tmp_path / "plain", script(style))
    assert expected.returncode == 0, expected.stderr

    every = request.config.getoption("--all-kills")
    if every or STYLES.index(style) % 2:
        _check_healthy(style, tmp_path / "watched", expected)
    for number, place in enumerate(_places(style, every)):
        _check_killed(style, place, tmp_path / f"killed_{number}", expected)


def _check_healthy(style: str, folder: Path, expected: Ended) -> None:
    watched = supervised(folder, script(style), settings=CHECKPOINTS)

    assert watched.returncode == 0, watched.stderr
    assert differences(expected.result(), watched.result()) == []
    assert watched.stdout == expected.stdout
    assert watched.events("warning") == []
    assert [name for name in watched.actions() if name != "checkpoint"] == []


def _check_killed(style: str, place: str, folder: Path, expected: Ended) -> None:
    faults = f"[{{kind: sigkill, {PLACES[place].removeprefix('{')}]"
    killed = supervised(folder, script(style), settings=KILLED, faults=faults)

    assert killed.returncode == 0, (place, killed.stderr)
    assert len(killed.events("restart")) == (2 if place == "twice" else 1), place
    resumed = killed.events("resumed")
    told = (place, resumed, killed.events("warning"))
    assert [e["exactness"] for e in resumed] == ["exact"] * len(resumed), told
    if place in RESUMED_FROM:
        assert [e["from_step"] for e in resumed] == RESUMED_FROM[place], told
    assert differences(expected.result(), killed.result()) == [], place
    if "own checkpoints" in style:
        logs = [(e.folder / "log.txt").read_text() for e in (expected, killed)]
        assert logs[0] == logs[1]


TWO_TRAININGS = """
def train(steps):
    model = make_model(); optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(steps):
        i = torch.randint(0, 96, (8,))
        loss = F.mse_loss(model(X[i]), Y[i])
        optimizer.zero_grad(); loss.backward(); optimizer.step()
    return model.state_dict()
first = train(12)
second = train(SECOND)
result = {"first": first, "second": second}
"""


def test_a_short_training_behind_another_is_supervised_and_resumes_exactly(
    tmp_path: Path,
) -> None:
    text = PRELUDE + TWO_TRAININGS.replace("SECOND", "40") + ENDING
    expected = train_plainly(tmp_path / "plain", text)

    killed = supervised(
        tmp_path / "killed", text, settings=KILLED, faults="[{kind: sigkill, step: 9}]"
    )

    assert killed.returncode == 0, killed.stderr
    assert [e["exactness"] for e in killed.events("resumed")] == ["exact"], killed.events()
    assert differences(expected.result(), killed.result()) == []
    assert [e["step"] for e in killed.found("another training")] == [12]
    assert killed.events("warning") == []


def test_a_run_that_begins_again_leaves_no_line_of_its_log_twice(tmp_path: Path) -> None:
    text = script("own checkpoints and log file")
    expected = train_plainly(tmp_path / "plain", text)

    settings = ("checkpoint.every_steps=1000",)  # none before the kill, on any machine
    killed = supervised(
        tmp_path / "killed", text, settings=settings, faults="[{kind: sigkill, step: 3}]"
    )

    assert killed.returncode == 0, killed.stderr
    assert killed.events("resumed") == []  # from the start
    assert differences(expected.result(), killed.result()) == []


def test_a_training_behind_another_is_treated_and_resumed_as_the_first_was(tmp_path: Path) -> None:
    text = PRELUDE + TWO_TRAININGS.replace("SECOND", "180") + ENDING
    expected = train_plainly(tmp_path / "plain", text)

    killed = supervised(
        tmp_path / "killed", text, settings=KILLED, faults="[{kind: sigkill, step: 41}]"
    )

    assert killed.returncode == 0, killed.stderr
    assert [e["step"] for e in killed.found("another training")] == [12]
    resumed = killed.events("resumed")
    assert [(e["exactness"], e["from_step"]) for e in resumed] == [("exact", 40)]
    assert differences(expected.result(), killed.result()) == []
    assert killed.events("warning") == []


def test_a_poisoned_update_of_a_second_training_is_left_out(tmp_path: Path) -> None:
    text = PRELUDE + TWO_TRAININGS.replace("SECOND", "180") + ENDING

    sick = supervised(
        tmp_path / "sick", text, settings=CHECKPOINTS, faults="[{kind: nan_gradient, step: 50}]"
    )

    assert sick.returncode == 0, sick.stderr
    assert [e["step"] for e in sick.events("update_skipped")] == [50]
    weights = sick.result()["second"].values()
    assert all(weight.isfinite().all() for weight in weights)


SCALED_TRAININGS = """
def train(steps):
    model = make_model(); optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=1000)
    for step in range(steps):
        i = torch.randint(0, 96, (8,))
        loss = 1000 * F.mse_loss(model(X[i]), Y[i])
        optimizer.zero_grad(); scaler.scale(loss).backward()
        scaler.step(optimizer); scaler.update()
    return {**model.state_dict(), "scale": scaler.get_scale()}
first = train(20)
second = train(180)
result = {"first": first, "second": second}
"""


def test_updates_that_a_scaler_leaves_out_count_towards_another_training(tmp_path: Path) -> None:
    text = PRELUDE + SCALED_TRAININGS + ENDING
    expected = train_plainly(tmp_path / "plain", text)

    killed = supervised(
        tmp_path / "killed", text, settings=KILLED, faults="[{kind: sigkill, step: 41}]"
    )

    assert killed.returncode == 0, killed.stderr
    assert expected.result()["second"]["scale"] < 2.0**120, "updates were left out"
    assert [e["step"] for e in killed.found("another training")] == [20]
    resumed = killed.events("resumed")
    assert [(e["exactness"], e["from_step"]) for e in resumed] == [("exact", 40)], resumed
    assert differences(expected.result(), killed.result()) == []
