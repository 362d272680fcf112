from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable

from supervisor.prediction.climb import Climb


def noisy(levels: Iterable[float], seed: int = 0) -> list[float]:
    noise = random.Random(seed)
    return [math.exp(level + noise.gauss(0.0, 0.15)) for level in levels]


def ever_found(losses: list[float]) -> bool:
    climb = Climb()
    seen = False
    for loss in losses:
        climb.update(loss)
        seen = seen or climb.found
    return seen


def test_a_steady_climb_is_seen() -> None:
    assert ever_found(noisy([*[0.0] * 100, *[0.01 * i for i in range(80)]]))


def test_noise_a_fall_and_a_single_jump_are_not() -> None:
    for seed in range(20):
        assert not ever_found(noisy([0.0] * 400, seed))
        assert not ever_found(noisy([-0.01 * i for i in range(400)], seed))
        assert not ever_found(noisy([*[0.0] * 200, *[1.0] * 200], seed))


def test_a_loss_that_may_be_negative_is_not_judged() -> None:
    assert not ever_found([-0.1, *noisy([0.01 * i for i in range(200)])])


def test_a_copy_of_the_state_goes_on_bit_for_bit() -> None:
    losses = noisy([*[0.0] * 80, *[0.01 * i for i in range(80)]])
    first, copy = Climb(), Climb()
    for loss in losses[:97]:
        first.update(loss)

    copy.load_state_dict(json.loads(json.dumps(first.state_dict())))

    for loss in losses[97:]:
        first.update(loss)
        copy.update(loss)
        assert first.state_dict() == copy.state_dict()
