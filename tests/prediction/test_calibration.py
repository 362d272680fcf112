from __future__ import annotations

import itertools

from supervisor.prediction.calibration import KNOTS, calibrate


def test_more_risk_never_means_a_smaller_probability() -> None:
    said = [calibrate(risk / 100) for risk in range(101)]

    assert all(one <= two for one, two in itertools.pairwise(said))
    assert 0.0 <= said[0] <= said[-1] <= 1.0


def test_the_knots_are_met_and_nothing_lies_beyond_them() -> None:
    assert [calibrate(risk) for risk, _ in KNOTS] == [share for _, share in KNOTS]
    assert calibrate(1.0) == KNOTS[-1][1]
