from __future__ import annotations

import json
import math

from supervisor.prediction.excursions import HEALED, LONG, MEMORY, Excursions


def found_at(alarms: list[bool], losses: list[float] | None = None) -> list[int]:
    excursions = Excursions()
    found = []
    for step, in_alarm in enumerate(alarms):
        excursions.update(losses[step] if losses else math.nan, in_alarm=in_alarm)
        if excursions.found:
            found.append(step)
    return found


def course(*parts: tuple[bool, int]) -> list[bool]:
    return [in_alarm for in_alarm, steps in parts for _ in range(steps)]


def test_a_second_excursion_that_heals_is_a_pattern_and_said_once() -> None:
    alarms = course((False, 100), (True, 8), (False, 200), (True, 8), (False, 200))

    assert found_at(alarms) == [100 + 8 + 200 + 8 + HEALED - 1]


def test_a_level_that_stays_until_it_counts_as_usual_has_not_healed() -> None:
    parts = ((1.0, 100), (2.0, 60), (2.0, 200), (3.5, 60), (3.2, 200))
    alarms = [off for number, (_, steps) in enumerate(parts) for off in [number in (1, 3)] * steps]
    losses = [level for level, steps in parts for _ in range(steps)]

    assert found_at(alarms) != []
    assert found_at(alarms, losses) == []


def test_what_was_far_higher_and_is_nearly_back_has_healed() -> None:
    alarms = course((False, 100), (True, 60), (False, 200), (True, 8), (False, 200))
    losses = [1.0] * 100 + [9.0] * 5 + [2.0] * 55 + [1.5] * 200 + [9.0] * 8 + [1.5] * 200

    assert found_at(alarms, losses) == found_at(alarms)


def test_one_excursion_single_bad_batches_and_what_lies_long_ago_are_none() -> None:
    one = course((False, 100), (True, 50), (False, 300))
    batches = course(*[(False, 60), (True, LONG - 1)] * 20)
    long_ago = course((True, 8), (False, MEMORY + 50), (True, 8), (False, 50))

    assert found_at(one) == found_at(batches) == found_at(long_ago) == []


def test_a_copy_of_the_state_goes_on_alike() -> None:
    first, copy = Excursions(), Excursions()
    for in_alarm in course((True, 8), (False, 100), (True, 8), (False, 10)):
        first.update(1.0, in_alarm=in_alarm)
    copy.load_state_dict(json.loads(json.dumps(first.state_dict())))

    seen = []
    for _ in range(HEALED):
        first.update(1.0, in_alarm=False)
        copy.update(1.0, in_alarm=False)
        assert first.found == copy.found
        seen.append(copy.found)
    assert any(seen)
