"""The pictures keep what matters and follow the theme."""

from __future__ import annotations

import numpy as np

from supervisor.report.facts import palette
from supervisor.report.pictures.thinning import thin


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


def test_colours_become_variables_and_metadata_goes() -> None:
    svg = (
        '<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg" width="9pt" height="3pt"'
        f' viewBox="0 0 9 3"><metadata>x</metadata><path style="fill: {palette.LOSS}"/></svg>'
    )

    themed = palette.themed(svg)

    assert themed == '<svg viewBox="0 0 9 3"><path style="fill: var(--plot-loss)"/></svg>'
