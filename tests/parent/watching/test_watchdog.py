"""What SIGKILL does not end is not waited for for ever."""

from __future__ import annotations

import signal

from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.parent.watching.watchdog import (
    LEFT_BEHIND_AFTER_S,
    RANKS_AGAIN_S,
    KnownStarts,
    Unkillable,
    Watchdog,
)
from supervisor.settings import WatchdogSettings


def stepping(step_s: float, steps: int = 100, **fields: object) -> tuple[Watchdog, float]:
    """A watchdog that saw steps of equal length, and the time of the last one."""
    watchdog = Watchdog(WatchdogSettings(**fields), started_s=0.0)  # type: ignore[arg-type]
    for step in range(1, steps + 1):
        watchdog.saw_steps(1, step * step_s)
    return watchdog, steps * step_s


def test_before_the_first_step_half_an_hour_may_pass() -> None:
    watchdog = Watchdog(WatchdogSettings(), started_s=100.0)

    assert not watchdog.is_hanging(100.0 + 1800.0)
    assert watchdog.is_hanging(100.0 + 1800.1)
    assert watchdog.reason(2000.0) == "no first step for 1900 s (limit 1800 s)"


def starting(known_start_s: float | None, **fields: object) -> Watchdog:
    """A watchdog of a later attempt, that has seen no step yet."""
    settings = WatchdogSettings(**fields)  # type: ignore[arg-type]
    return Watchdog(settings, started_s=0.0, known_start_s=known_start_s)


def test_a_later_start_that_waits_ten_times_as_long_as_any_before_hangs() -> None:
    quick, slow, slowest = starting(20.0), starting(90.0), starting(600.0)

    assert not quick.is_hanging(300.0)
    assert quick.is_hanging(300.1)
    assert not slow.is_hanging(900.0)
    assert slow.is_hanging(900.1)
    assert not slowest.is_hanging(1800.0)


def test_a_later_start_that_works_a_little_has_the_whole_time() -> None:
    prepares_data, waits = starting(5.0), starting(5.0)
    prepares_data.saw_cpu_time(8.0, all_cpu_s=80.0)
    waits.saw_cpu_time(8.0, all_cpu_s=8.0)

    assert not prepares_data.is_hanging(1500.0)
    assert prepares_data.is_hanging(1800.1)
    assert waits.is_hanging(300.1)


def test_a_replay_that_goes_on_is_no_hang_however_long_it_takes() -> None:
    watchdog = starting(5.0)
    for minute in range(60):
        watchdog.saw_sign_of_life(60.0 * minute)

    assert not watchdog.is_hanging(3600.0)
    assert watchdog.is_hanging(3540.0 + 300.1)
    assert watchdog.reason(3900.0) == (
        "no first step for 3900 s, no sign of life for 360 s (limit 300 s)"
    )


def test_a_set_timeout_may_shorten_a_later_start_but_not_below_ten_times_the_known() -> None:
    watchdog = starting(5.0, hang_timeout_s=20.0)

    assert not watchdog.is_hanging(50.0)
    assert watchdog.is_hanging(50.1)


def test_the_longest_silence_of_all_starts_counts_until_one_was_called_a_hang() -> None:
    starts = KnownStarts()
    for start_s in (10.0, 40.0, 20.0):
        watchdog = Watchdog(WatchdogSettings(), started_s=0.0)
        watchdog.saw_sign_of_life(start_s / 4)
        watchdog.saw_steps(1, start_s)
        watchdog.saw_sign_of_life(start_s + 500.0)
        starts.attempt_ended(watchdog, hung=False)
    assert starts.longest_silence_s == 30.0

    starts.attempt_ended(starting(30.0), hung=False)
    assert starts.longest_silence_s == 30.0

    starts.attempt_ended(starting(30.0), hung=True)
    assert starts.longest_silence_s is None


def test_fast_steps_may_pause_a_minute() -> None:
    watchdog, last_s = stepping(0.01)

    assert not watchdog.is_hanging(last_s + 60.0)
    assert watchdog.is_hanging(last_s + 60.1)


def test_slow_steps_may_pause_ten_times_as_long() -> None:
    watchdog, last_s = stepping(20.0)

    assert not watchdog.is_hanging(last_s + 199.0)
    assert watchdog.is_hanging(last_s + 201.0)


def test_one_slow_step_of_two_hundred_does_not_stretch_the_limit() -> None:
    watchdog, last_s = stepping(1.0, steps=150)
    watchdog.saw_steps(1, last_s + 500.0)
    for step in range(1, 100):
        watchdog.saw_steps(1, last_s + 500.0 + step)

    assert watchdog.timeout_s(last_s + 600.0) == 60.0


def test_the_warm_up_is_given_more_time() -> None:
    watchdog, last_s = stepping(0.01, steps=3)

    assert not watchdog.is_hanging(last_s + 200.0)
    assert watchdog.is_hanging(last_s + 301.0)


def test_a_set_timeout_counts_from_the_first_step_on() -> None:
    watchdog, last_s = stepping(0.01, steps=1, hang_timeout_s=5.0)

    assert watchdog.is_hanging(last_s + 5.1)


def test_other_signs_of_life_are_progress_too() -> None:
    watchdog, last_s = stepping(0.01)
    watchdog.saw_sign_of_life(last_s + 50.0)

    assert not watchdog.is_hanging(last_s + 100.0)
    assert watchdog.since_step_s(last_s + 100.0) == 100.0


def test_a_worker_that_computes_is_given_longer_than_one_that_waits() -> None:
    watchdog, last_s = stepping(0.01)
    watchdog.saw_cpu_time(100.0)

    assert not watchdog.is_hanging(last_s + 150.0)
    assert watchdog.is_hanging(last_s + 201.0)

    watchdog.saw_cpu_time(700.0)

    assert not watchdog.is_hanging(last_s + 600.0)
    assert watchdog.is_hanging(last_s + 600.1)


def test_a_set_timeout_holds_for_a_busy_worker_too() -> None:
    watchdog, last_s = stepping(0.01, hang_timeout_s=5.0)
    watchdog.saw_cpu_time(1000.0)

    assert watchdog.is_hanging(last_s + 5.1)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0.001, 5.0), min_size=10, max_size=300))
def test_a_worker_that_steps_never_hangs(times_s: list[float]) -> None:
    watchdog = Watchdog(WatchdogSettings(), started_s=0.0)
    now_s = 0.0

    for time_s in times_s:
        now_s += time_s
        assert not watchdog.is_hanging(now_s)
        watchdog.saw_steps(1, now_s)


def test_ranks_that_start_again_are_given_less_time_to_meet() -> None:
    given = WatchdogSettings()
    watchdog = Watchdog(given, started_s=0.0, known_start_s=3.0, warm_up_s=RANKS_AGAIN_S)

    assert watchdog.timeout_s(0.0) == RANKS_AGAIN_S
    watchdog.saw_steps(1, 1.0)
    assert watchdog.timeout_s(1.0) == RANKS_AGAIN_S
    first = Watchdog(given, started_s=0.0, warm_up_s=RANKS_AGAIN_S)
    assert first.timeout_s(0.0) == given.first_step_timeout_s


def test_the_wait_ends_some_time_after_the_first_sigkill() -> None:
    watch = Unkillable()

    assert not watch.is_there([[], [signal.SIGTERM]], 0.0)
    assert not watch.is_there([[], [signal.SIGTERM]], 1e6)
    assert not watch.is_there([[], [signal.SIGTERM, signal.SIGKILL]], 1e6 + 1)
    assert not watch.is_there([[signal.SIGKILL]], 1e6 + 1 + LEFT_BEHIND_AFTER_S)
    assert watch.is_there([[signal.SIGKILL]], 1e6 + 2 + LEFT_BEHIND_AFTER_S)


def test_a_rank_on_its_way_back_may_be_silent_as_long_as_at_a_start() -> None:
    watchdog = Watchdog(WatchdogSettings(), started_s=0.0, warm_up_s=100.0)
    for step in range(100):
        watchdog.saw_steps(1, 30.0 + step)  # the first after 30 s
    at_s = 129.0

    watchdog.starts_again(True, at_s)
    limit_s = watchdog.timeout_s(at_s + 290.0)
    hangs = [watchdog.is_hanging(at_s + after_s) for after_s in (290.0, 301.0)]
    watchdog.starts_again(False, at_s + 301.0)

    assert (limit_s, hangs) == (300.0, [False, True])
    assert watchdog.is_hanging(at_s + 301.0 + 61.0)
