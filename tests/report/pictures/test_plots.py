"""The pictures keep what matters."""

from __future__ import annotations

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from supervisor.report.facts.observed_courses import Course
from supervisor.report.facts.observed_values import draw_courses
from supervisor.report.pictures.plots import STYLE, fit_titles
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


def test_the_titles_of_a_narrow_picture_do_not_run_into_each_other() -> None:
    names = ("dead_layers_share", "representation_spread", "activation_max", "update_ratio")
    line = np.arange(10.0)
    course = Course(steps=line, values=line, count=10, first=0.0, last=9.0, nonfinite=line[:0])
    with matplotlib.rc_context(STYLE):
        figure = Figure(layout="constrained")
        FigureCanvasAgg(figure)
        draw_courses(figure, dict.fromkeys(names, course))
        figure.set_size_inches(4.8, 3.0)

        fit_titles(figure)

        figure.draw_without_rendering()
        for axis in (axis for axis in figure.axes if axis.get_visible()):
            title = axis.get_title(loc="left") or axis.get_title()
            (text,) = (t for t in axis.findobj(Text) if title and t.get_text() == title)
            assert text.get_window_extent().width <= 1.05 * axis.get_window_extent().width
