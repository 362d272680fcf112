"""What a run is told that was not supervised."""

from __future__ import annotations

from supervisor.worker.step_record.step_recorder import ANOTHER_TRAINING, tell_unseen_updates


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
