from __future__ import annotations

import json

from supervisor.prediction.excursions import HEALED, LONG, MEMORY, Excursions


def found_at(alarms: list[bool]) -> list[int]:
    excursions = Excursions()
    found = []
    for step, in_alarm in enumerate(alarms):
        excursions.update(in_alarm=in_alarm)
        if excursions.found:
            found.append(step)
    return found


def course(*parts: tuple[bool, int]) -> list[bool]:
    return [in_alarm for in_alarm, steps in parts for _ in range(steps)]


def test_a_second_excursion_that_heals_is_a_pattern_and_said_once() -> None:
    alarms = course((False, 100), (True, 8), (False, 200), (True, 8), (False, 200))

    assert found_at(alarms) == [100 + 8 + 200 + 8 + HEALED - 1]


def test_one_excursion_single_bad_batches_and_what_lies_long_ago_are_none() -> None:
    one = course((False, 100), (True, 50), (False, 300))
    batches = course(*[(False, 60), (True, LONG - 1)] * 20)
    long_ago = course((True, 8), (False, MEMORY + 50), (True, 8), (False, 50))

    assert found_at(one) == found_at(batches) == found_at(long_ago) == []


def test_a_copy_of_the_state_goes_on_alike() -> None:
    first, copy = Excursions(), Excursions()
    for in_alarm in course((True, 8), (False, 100), (True, 8), (False, 10)):
        first.update(in_alarm=in_alarm)
    copy.load_state_dict(json.loads(json.dumps(first.state_dict())))

    seen = []
    for _ in range(HEALED):
        first.update(in_alarm=False)
        copy.update(in_alarm=False)
        assert first.found == copy.found
        seen.append(copy.found)
    assert any(seen)
