from __future__ import annotations

import math
import random

import pytest

from supervisor.detectors.statistics.run_scale import SHARE, RunScale


def test_the_zero_level_falls_as_the_run_settles_and_never_rises() -> None:
    noise = random.Random(0)
    scale = RunScale()
    floors = []
    for row in range(2000):
        scale.update(155 * 0.87**row + noise.gauss(0.4, 0.05) + 500.0 * (row > 1000))
        floors.append(scale.floor)

    assert floors[19] == pytest.approx(SHARE * 45, rel=0.2)
    assert floors[100] < 0.3
    assert floors[10:] == sorted(floors[10:], reverse=True)


def test_what_is_learned_by_heart_does_not_take_the_zero_level_with_it() -> None:
    """Its noise while it learned stays a yardstick, until it is sixteen times as old."""
    noise = random.Random(3)
    scale = RunScale()
    for row in range(1200):
        course = 2.3 * math.exp(-row / 40) * noise.lognormvariate(0, 0.3)
        scale.update(course + 1e-5 * noise.lognormvariate(0, 1.5))

    assert scale.floor > 0.1


def test_a_heavy_tail_leaves_the_zero_level_where_it_was() -> None:
    """A classifier at 0.0005 within twenty rows, and a 0.05 now and then, which is no trouble."""
    scale = RunScale()
    for row in range(80):
        scale.update(2.3 * 0.65**row + (0.05 if row in (30, 70) else 5e-4))

    assert scale.floor == SHARE * scale.level


def test_a_noisy_start_is_forgotten() -> None:
    noise = random.Random(0)
    scale = RunScale()
    for row in range(640):
        course = 155 * 0.87**row + 5.0 if row < 40 else 0.4
        scale.update(course * noise.lognormvariate(0, 0.1))
        if row == 300:
            assert scale.floor > 0.4

    assert scale.floor < 0.2
