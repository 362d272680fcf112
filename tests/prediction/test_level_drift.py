from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable

from supervisor.prediction.level_drift import ADOPT, LevelDrift


def noisy(levels: Iterable[float], seed: int = 0, noise: float = 0.3) -> list[float]:
    source = random.Random(seed)
    return [math.exp(level + source.gauss(0.0, noise)) for level in levels]


def distances(losses: list[float], *, linear: bool = False) -> list[float]:
    departure = LevelDrift(linear=linear)
    result = []
    for loss in losses:
        departure.update(loss)
        result.append(departure.distance)
    return result


def test_a_level_that_climbs_under_noise_is_seen_before_it_has_doubled() -> None:
    for seed in range(5):
        losses = noisy([*[0.0] * 200, *[0.01 * i for i in range(90)]], seed)
        seen = distances(losses)

        assert max(seen[:200]) < 1.0
        assert max(seen[200:270]) >= 1.0


def test_noise_a_fall_and_single_bad_batches_are_not() -> None:
    for seed in range(10):
        assert max(distances(noisy([0.0] * 1000, seed))) < 1.0
        assert max(distances(noisy([-0.01 * i for i in range(400)], seed))) < 1.0
        spikes = [5.0 if i % 97 == 96 else 0.0 for i in range(600)]
        assert max(distances(noisy(spikes, seed))) < 1.0


def test_a_young_loss_that_rises_from_its_start_has_left_no_level() -> None:
    rising = [min(0.01 * i, 1.0) for i in range(150)]
    fallen = [*[1.0 - 0.02 * i for i in range(50)], *[min(0.01 * i, 1.0) for i in range(200)]]

    assert max(distances(noisy(rising))) == 0.0
    assert max(distances(noisy(fallen))) >= 1.0


def test_a_level_that_stays_is_adopted() -> None:
    seen = distances(noisy([*[0.0] * 200, *[1.5] * 200]))

    assert max(seen[200:230]) >= 1.0
    assert max(seen[200 + 2 * ADOPT + 20 :]) < 1.0


def test_a_loss_that_may_be_negative_is_not_judged_but_a_reward_is() -> None:
    falling = [*noisy([0.0] * 100), *noisy([-0.03 * i for i in range(100)])]

    assert max(distances([-0.1, *noisy([0.02 * i for i in range(200)])])) == 0.0
    assert max(distances([-reward for reward in falling], linear=True)) >= 1.0


def test_a_copy_of_the_state_goes_on_bit_for_bit() -> None:
    losses = noisy([*[0.0] * 80, *[0.02 * i for i in range(120)]])
    first, copy = LevelDrift(), LevelDrift()
    for loss in losses[:97]:
        first.update(loss)

    copy.load_state_dict(json.loads(json.dumps(first.state_dict())))

    for loss in losses[97:]:
        first.update(loss)
        copy.update(loss)
        assert first.state_dict() == copy.state_dict()


def test_a_doubling_behind_a_huge_first_loss_is_seen() -> None:
    def course(doubles: bool) -> list[float]:
        levels = [math.log(3.0 + 32.0 * math.exp(-step / 20)) for step in range(300)]
        risen = [min(1.0, max(0.0, (step - 200) / 40)) for step in range(300)]
        return [
            level + doubles * math.log1p(share) for level, share in zip(levels, risen, strict=True)
        ]

    for seed in range(5):
        seen = distances(noisy(course(doubles=True), seed, 0.1))

        assert max(seen[:200]) < 1.0
        assert max(seen[200:235]) >= 1.0
        assert max(distances(noisy(course(doubles=False), seed, 0.1))) < 1.0


def test_what_has_come_back_to_its_level_is_no_departure() -> None:
    hump = [2.0 * math.exp(-abs(step - 500) / 3) for step in range(700)]
    stays = [2.0 if step >= 500 else 0.0 for step in range(560)]

    for seed in range(5):
        healed, left = distances(noisy(hump, seed, 0.1)), distances(noisy(stays, seed, 0.1))

        assert max(healed[525:]) < 1.0
        assert max(left) >= 1.0


def test_one_lucky_stretch_is_not_the_level_to_be_left() -> None:
    lucky = [-0.45 if 1980 <= step < 2000 else 0.0 for step in range(3000)]

    for seed in range(5):
        assert max(distances(noisy(lucky, seed, 0.1))) < 1.0
