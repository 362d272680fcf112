from __future__ import annotations

import itertools

from supervisor.prediction.calibration import EVIDENCE, KNOTS, calibrate, weigh


def test_more_evidence_always_means_a_larger_probability() -> None:
    said = [calibrate(evidence / 100) for evidence in range(101)]

    assert all(one < two for one, two in itertools.pairwise(said))
    assert 0.0 <= said[0] <= said[-1] <= 1.0


def test_the_knots_are_met_and_nothing_lies_beyond_them() -> None:
    assert [calibrate(evidence) for evidence, _ in KNOTS] == [share for _, share in KNOTS]
    assert calibrate(1.5) == KNOTS[-1][1]


def test_a_larger_contribution_never_weighs_less() -> None:
    for name in [*EVIDENCE, "loss_warning"]:
        weights = [weigh({name: risk / 100}) for risk in range(30, 96)]

        assert weights == sorted(weights)


def test_signals_that_agree_weigh_more_than_the_strongest_alone() -> None:
    climb = weigh({"steady_climb": 0.6})

    assert weigh({"steady_climb": 0.6, "departure": 0.55}) > climb
    assert weigh({"steady_climb": 0.6, "loss_warning": 0.35}) == climb
    assert weigh({}) == 0.0
