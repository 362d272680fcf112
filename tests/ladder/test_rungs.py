from __future__ import annotations

from supervisor.config import load_policy
from supervisor.ladder.rungs import Rungs
from supervisor.records import Cause, CrashRisk

ROLLBACK, RESTART = 3, 4


def risk(probability: float, cause: Cause = Cause.DIVERGENCE) -> CrashRisk:
    return CrashRisk(step=9, probability=probability, cause=cause)


def test_rungs_for_another_cause_do_not_fit() -> None:
    rungs = Rungs(load_policy())

    assert rungs.fitting(risk(0.7)) == [0, 1, 3]
    assert rungs.fitting(risk(0.7, Cause.LOSS_SCALE)) == [0, 1, 2, 3]


def test_the_mildest_is_tried_first_unless_trouble_is_certain() -> None:
    rungs = Rungs(load_policy())
    fitting = [1, ROLLBACK, RESTART]

    assert rungs.next(risk(0.8), fitting, rolled_back=False) == 1
    assert rungs.next(risk(1.0), fitting, rolled_back=False) == ROLLBACK


def test_a_restart_is_reached_only_after_a_rollback() -> None:
    rungs = Rungs(load_policy())
    rungs.take(1)

    assert rungs.next(risk(0.9), [1, RESTART], rolled_back=False) is None
    assert rungs.next(risk(0.9), [1, RESTART], rolled_back=True) == RESTART


def test_an_episode_that_is_over_is_forgotten() -> None:
    policy = load_policy()
    policy.by_cause = {"divergence": ["tighten_clip"]}
    rungs = Rungs(policy)
    rungs.take_own(Cause.DIVERGENCE)
    rungs.take(1)

    assert rungs.own_list(risk(0.8)) == []
    rungs.forget()

    assert rungs.own_list(risk(0.8)) == ["tighten_clip"]
    assert rungs.next(risk(0.8), [1], rolled_back=False) == 1
