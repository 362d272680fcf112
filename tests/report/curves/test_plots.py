"""The pictures keep what matters."""

from __future__ import annotations

import numpy as np

from supervisor.report.facts.step_table import thin


def test_a_single_spike_of_a_long_run_survives_the_thinning() -> None:
    steps = np.arange(200_000, dtype=np.float64)
    values = np.ones(200_000)
    values[123_456] = 1e6
    values[7] = -5.0

    x, y = thin(steps, values)

    assert len(x) <= 1802
    assert y.max() == 1e6
    assert y.min() == -5.0
    assert x[int(np.argmax(y))] == 123_456


def test_what_is_not_finite_is_left_out_of_a_line() -> None:
    x, y = thin(np.arange(4.0), np.array([1.0, np.nan, np.inf, 2.0]))

    assert x.tolist() == [0.0, 3.0]
    assert y.tolist() == [1.0, 2.0]
