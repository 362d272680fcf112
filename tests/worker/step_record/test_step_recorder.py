"""What a run is told that was not supervised."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from supervisor.worker.step_record import step_recorder
from supervisor.worker.step_record.step_recorder import (
    ANOTHER_TRAINING,
    MANY_BACKWARDS,
    NO_STEP_YET,
    tell_unseen_updates,
)
from tests.worker.conftest import Start


def test_updates_by_hand_and_second_trainings_are_told() -> None:
    by_hand = tell_unseen_updates(steps=0, backward_calls=5, updates_by_others=0)
    second = tell_unseen_updates(steps=12, backward_calls=40, updates_by_others=40)

    assert by_hand is not None
    assert by_hand.startswith("5 backward passes")
    assert second is not None
    assert second.startswith("40 updates of another optimizer")


def test_ordinary_ends_are_not() -> None:
    for steps, backwards, others in ((0, 0, 0), (0, 1, 0), (40, 1, 0), (40, 6, 5)):
        told = tell_unseen_updates(steps=steps, backward_calls=backwards, updates_by_others=others)
        assert told is None
    assert ANOTHER_TRAINING > 5


def test_replays_of_graphs_are_told_with_their_number() -> None:
    told = tell_unseen_updates(steps=0, backward_calls=5, updates_by_others=0, graph_replays=40)

    assert told == "not judged: 40 replays of CUDA graphs, whatever was updated in them"


@pytest.mark.parametrize("in_closure", [True, False])
def test_a_search_with_many_backwards_in_its_first_update_is_supervised(
    start: Start, tmp_path: Path, in_closure: bool
) -> None:
    """One that wraps SciPy's L-BFGS-B, which has no learning rate either."""
    live = start(tmp_path / "run")
    model, hooks = live.model, live.session.hooks.now
    optimizer = torch.optim.Optimizer(model.parameters(), {})

    def closure() -> torch.Tensor:
        loss = hooks.forward(model, (torch.ones(8, 4),), {}, lambda: model(torch.ones(8, 4))).mean()
        hooks.backward(loss, lambda roots: roots.backward())
        return loss

    if not in_closure:
        for _ in range(MANY_BACKWARDS):
            closure()
    taken = hooks.before_update(optimizer, (closure,), {})
    for _ in range(MANY_BACKWARDS + 1 if in_closure else 1):
        taken[0][0]()
    hooks.after_update(optimizer, None)
    live.steps(1)
    live.stop()

    told = [event["message"] for event in live.events("warning")]
    assert told == ([] if in_closure else [NO_STEP_YET])
    assert len(live.losses()) == 1


def test_many_parameters_are_asked_for_earlier_gradients_only_where_the_state_may_be_saved(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = start(tmp_path / "run")
    progress, schedule = live.session.hooks.now.progress, live.session.hooks.now.schedule
    look, asked = step_recorder.earlier_gradients, []
    monkeypatch.setattr(step_recorder, "MANY_TENSORS", 1)
    monkeypatch.setattr(
        step_recorder, "earlier_gradients", lambda of: asked.append(progress.steps_done) or look(of)
    )
    live.steps(3)
    known = {}
    for step in range(3, 9):
        schedule.plan(7.0, math.inf)  # the boundary behind step 6
        live.step()
        known[step] = not progress.grads_matter
    schedule.plan(math.inf, 0.0)
    live.step()

    schedule.plan(math.inf, 0.0, math.inf)  # of a part that saves nothing
    assert not live.session.hooks.now._steps._may_be_saved()
    assert [step for step in asked if step >= 3] == [6, 9]
    assert [step for step, is_known in known.items() if is_known] == [6]
