from __future__ import annotations

import json
import math

import pytest

from supervisor.actions.controls import (
    ADAPTIVE_FIXED,
    AdaptiveThreshold,
    Controls,
    Ramp,
)


def test_fresh_controls_are_neutral() -> None:
    controls = Controls()

    assert controls.is_neutral
    assert controls.max_norm(None) is None
    assert controls.max_norm(0.7) == 0.7


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("lr_factor", 0.5), ("lr_share", 0.5), ("lr_limit", 0.1), ("clip_factor", 0.5)),
        *(("clip_norm", 1.0), ("adaptive", AdaptiveThreshold()), ("ramp", Ramp(0.5, 1.0, 4))),
        ("checkpoint_activations", True),
    ],
)
def test_any_change_ends_neutrality_until_it_is_taken_back(name: str, value: object) -> None:
    controls = Controls()
    neutral = getattr(controls, name)

    setattr(controls, name, value)
    changed = controls.is_neutral
    setattr(controls, name, neutral)

    assert not changed
    assert controls.is_neutral
    assert not Controls(**{name: value}).is_neutral


def test_the_strictest_threshold_applies() -> None:
    controls = Controls(clip_factor=0.5, clip_norm=3.0)

    assert controls.max_norm(4.0) == 2.0
    assert controls.max_norm(None) == 3.0


def test_a_ramp_ends_exactly_at_one() -> None:
    controls = Controls(lr_factor=0.3, ramp=Ramp(0.3, 1.0, 4))

    factors = []
    for _ in range(6):
        controls.advance()
        factors.append(controls.lr_factor)

    assert factors == pytest.approx([0.475, 0.65, 0.825, 1.0, 1.0, 1.0])
    assert controls.is_neutral


def test_the_adaptive_threshold_follows_the_norms_within_its_limits() -> None:
    threshold = AdaptiveThreshold()
    for _ in range(99):
        threshold.update(2.0)
    at_first = threshold.value
    threshold.update(2.0)
    threshold.update(math.nan)
    usual = threshold.value
    for _ in range(2000):
        threshold.update(1e6)

    assert (at_first, usual, threshold.value) == (ADAPTIVE_FIXED, 2.0, 100.0)
    assert len(threshold.norms) == 1000


def test_controls_survive_a_checkpoint_as_json() -> None:
    controls = Controls(lr_factor=0.4, ramp=Ramp(0.25, 1.0, 50, 3), fp32=True, clip_norm=2.0)
    controls.adaptive = AdaptiveThreshold()
    controls.advance(1.5)

    loaded = Controls()
    loaded.load_state_dict(json.loads(json.dumps(controls.state_dict())))

    assert loaded == controls
