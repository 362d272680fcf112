from __future__ import annotations

import signal
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.codes import ExitSign, OutsideCause
from supervisor.parent.restarts.failure_signs import OUTSIDE
from supervisor.parent.restarts.restart_policy import Backoff, RestartPolicy
from supervisor.records import ExitCause, WorkerExit
from supervisor.settings import RestartSettings

CAUSES = [cause for cause in ExitCause if cause is not ExitCause.COMPLETED]


def policy(**fields: object) -> RestartPolicy:
    backoff = Backoff(1.0, 60.0, uniform=lambda low, high: 1.0)
    return RestartPolicy(RestartSettings(**fields), backoff=backoff)  # type: ignore[arg-type]


def crash(
    step: int | None, cause: ExitCause = ExitCause.KILLED, evidence: str = "SIGKILL"
) -> WorkerExit:
    return WorkerExit(cause=cause, last_step=step, evidence=(evidence,))


def test_the_third_crash_without_progress_ends_the_run() -> None:
    restarts = policy()

    verdicts = [restarts.decide(crash(step)).again for step in (3, 5, 9)]

    assert verdicts == [True, True, False]
    assert restarts.crashes == 3


def test_progress_begins_the_count_anew() -> None:
    restarts = policy()

    verdicts = [restarts.decide(crash(step)) for step in (10, 20, 75, 76, 200)]

    assert all(verdict.again for verdict in verdicts)
    assert restarts.crashes == 1


def test_progress_is_counted_from_the_step_that_a_resumed_run_starts_at() -> None:
    restarts = RestartPolicy(RestartSettings(crash_limit=2), first_step=1000)

    assert restarts.decide(crash(1010)).again
    assert not restarts.decide(crash(1020)).again


def test_many_small_advances_add_up_to_progress() -> None:
    restarts = policy()

    assert all(restarts.decide(crash(step)).again for step in range(25, 1000, 25))


def test_a_limit_of_one_never_tries_again() -> None:
    verdict = policy(crash_limit=1).decide(crash(3))

    assert not verdict.again
    assert "1 crash without" in verdict.reason


def test_the_same_failure_is_retried_then_skipped_then_final() -> None:
    restarts = policy(crash_limit=10)

    bad = crash(40, ExitCause.EXCEPTION, "bad image")
    first, second, third = (restarts.decide(bad) for _ in range(3))

    assert (first.again, first.order.skip_steps) == (True, ())
    assert (second.again, second.order.skip_steps) == (True, (40, 41))
    assert not third.again
    assert third.reason == (
        "the same failure 3 times after step 40, the last without its data: bad image"
    )


KILLED = WorkerExit(cause=ExitCause.KILLED, last_step=40, evidence=("killed",))


@pytest.mark.parametrize(
    "from_outside",
    [
        replace(KILLED, signum=signal.SIGKILL),
        replace(KILLED, signum=signal.SIGTERM),
        replace(KILLED, signum=signal.SIGSEGV),
        crash(40, ExitCause.HANG, "no step for 60 s"),
        crash(40, ExitCause.HOST_OUT_OF_MEMORY, "the kernel killed it"),
        replace(crash(40, ExitCause.EXCEPTION, "exit code 3"), outside=OutsideCause.UNSEEN),
        KILLED,  # its node is gone
        replace(KILLED, signum=signal.SIGABRT, evidence=("NCCL error: remote process exited",)),
        crash(40, ExitCause.EXCEPTION, "RuntimeError: Connection closed by peer [127.0.0.1]:31337"),
    ],
)
def test_what_comes_twice_at_one_step_from_outside_costs_no_data(from_outside: WorkerExit) -> None:
    restarts = policy(crash_limit=10)

    verdicts = [restarts.decide(from_outside) for _ in range(3)]

    assert [verdict.order.skip_steps for verdict in verdicts] == [(), (), ()]
    (evidence,) = from_outside.evidence
    assert verdicts[-1].reason == f"the same failure 3 times after step 40: {evidence}"


@pytest.mark.parametrize("outside", [OutsideCause.DISK, OutsideCause.CONNECTION])
def test_what_may_be_mended_from_outside_is_tried_up_to_the_crash_limit(
    outside: OutsideCause,
) -> None:
    restarts = policy(crash_limit=5)
    failed = replace(crash(40, ExitCause.EXCEPTION, "it failed"), outside=outside)

    verdicts = [restarts.decide(failed) for _ in range(5)]

    assert [verdict.again for verdict in verdicts] == [True, True, True, True, False]
    assert all(verdict.order.skip_steps == () for verdict in verdicts)
    assert verdicts[-1].reason.endswith(f"the last: it failed ({OUTSIDE[outside]})")


def test_a_failure_before_the_first_step_has_no_data_to_leave_out() -> None:
    restarts = policy(crash_limit=10)

    verdicts = [restarts.decide(crash(None, evidence="no such data set")) for _ in range(3)]

    assert [verdict.order.skip_steps for verdict in verdicts] == [(), (), ()]
    assert verdicts[-1].reason == (
        "the same failure 3 times before the first step: no such data set"
    )


def test_different_failures_at_one_step_are_not_the_same() -> None:
    restarts = policy(crash_limit=10)

    restarts.decide(crash(40, evidence="bad image"))

    assert restarts.decide(crash(40, evidence="no route to host")).order.skip_steps == ()


def test_numerical_trouble_starts_from_the_stable_checkpoint_more_and_more_carefully() -> None:
    restarts = policy()

    first = restarts.decide(crash(10, ExitCause.NONFINITE))
    second = restarts.decide(crash(12, ExitCause.NONFINITE))

    assert (first.start, first.order.lr_factor, first.order.careful_steps) == ("stable", 0.5, 50)
    assert (second.start, second.order.lr_factor, second.order.fp32) == ("stable", 0.25, True)
    assert first.order.fp32 is False


def test_an_exception_at_high_risk_counts_as_numerical_trouble() -> None:
    verdict = policy().decide(crash(10, ExitCause.EXCEPTION), risky=True)

    assert (verdict.start, verdict.order.lr_factor) == ("stable", 0.5)


@pytest.mark.parametrize(
    "cause", [ExitCause.KILLED, ExitCause.HANG, ExitCause.HOST_OUT_OF_MEMORY, ExitCause.PREEMPTED]
)
def test_a_death_from_outside_at_high_risk_changes_nothing_in_the_training(
    cause: ExitCause,
) -> None:
    verdict = policy().decide(crash(10, cause), risky=True)

    assert (verdict.start, verdict.order.lr_factor, verdict.order.careful_steps) == (
        "stable",
        1.0,
        0,
    )


def test_memory_that_ran_out_while_our_copies_were_held_is_not_charged_to_the_script() -> None:
    restarts = policy()
    out = replace(crash(10, ExitCause.HOST_OUT_OF_MEMORY), offers_checkpointing=True)

    verdicts = [restarts.decide(out, copies=copies) for copies in (4, 1)]

    assert [verdict.order.most_copies for verdict in verdicts] == [1, 0]
    for verdict in verdicts:
        assert verdict.again
        assert (verdict.order.skip_steps, verdict.order.batch_factor, verdict.order.lr_factor) == (
            (),
            1.0,
            1.0,
        )
        assert not verdict.order.checkpoint_activations
    assert restarts.crashes == 0


def test_memory_that_ran_out_with_none_of_our_copies_is_treated_and_none_come_again() -> None:
    restarts = policy()
    out = replace(crash(10, ExitCause.HOST_OUT_OF_MEMORY), offers_checkpointing=True)
    restarts.decide(out, copies=1)

    verdict = restarts.decide(out, copies=0)

    assert (verdict.order.most_copies, verdict.order.checkpoint_activations) == (0, True)


def test_a_failure_of_the_process_alone_changes_nothing_in_the_training() -> None:
    verdict = policy().decide(crash(10))

    assert (verdict.start, verdict.order.lr_factor, verdict.order.fp32) == ("latest", 1.0, False)
    assert (verdict.order.skip_steps, verdict.order.careful_steps) == ((), 0)


def test_the_wait_doubles_up_to_its_limit() -> None:
    backoff = Backoff(1.0, 60.0, uniform=lambda low, high: 1.0)

    waits = [backoff.delay_s(failures) for failures in (1, 2, 3, 7, 5000)]

    assert waits == [1.0, 2.0, 4.0, 60.0, 60.0]


@settings(max_examples=50, deadline=None)
@given(failures=st.integers(1, 10_000))
def test_the_wait_is_spread_by_a_fifth_at_most(failures: int) -> None:
    exact = Backoff(1.0, 60.0, uniform=lambda low, high: 1.0).delay_s(failures)

    assert 0.79 * exact <= Backoff(1.0, 60.0).delay_s(failures) <= 1.21 * exact


@settings(max_examples=50, deadline=None)
@given(
    steps=st.lists(st.none() | st.integers(0, 48), min_size=1, max_size=30),
    limit=st.integers(1, 5),
)
def test_a_run_without_progress_always_ends(steps: list[int | None], limit: int) -> None:
    restarts = policy(crash_limit=limit)

    verdicts = [restarts.decide(crash(step)) for step in steps]

    ends = [index for index, verdict in enumerate(verdicts) if not verdict.again]
    assert (not ends and len(steps) < limit) or ends[0] <= limit - 1


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(st.none() | st.integers(0, 500), st.sampled_from(CAUSES), st.booleans()),
        max_size=20,
    )
)
def test_skipped_steps_are_kept_and_factors_stay_in_range(
    crashes: list[tuple[int | None, ExitCause, bool]],
) -> None:
    restarts = policy(crash_limit=100)
    skipped: set[int] = set()

    for step, cause, risky in crashes:
        verdict = restarts.decide(crash(step, cause), risky=risky)

        if verdict.again:
            assert skipped <= set(verdict.order.skip_steps)
            assert 0 < verdict.order.lr_factor <= 1
            skipped = set(verdict.order.skip_steps)


def test_out_of_memory_halves_microbatches_four_times_before_it_counts() -> None:
    restarts = policy(crash_limit=2)
    full = WorkerExit(
        cause=ExitCause.OUT_OF_MEMORY, last_step=11, evidence=("OOM",), asks_batch_size=True
    )

    verdicts = [restarts.decide(full) for _ in range(6)]

    assert [v.order.batch_factor for v in verdicts[:5]] == [0.5, 0.25, 0.125, 0.0625, 0.0625]
    assert [v.before_step for v in verdicts[:4]] == [12] * 4
    assert [v.again for v in verdicts] == [True] * 5 + [False]


def test_activations_are_computed_again_before_microbatches_shrink_and_stay_so() -> None:
    restarts = policy(crash_limit=1)
    full = WorkerExit(
        cause=ExitCause.OUT_OF_MEMORY,
        last_step=11,
        evidence=("OOM",),
        asks_batch_size=True,
        offers_checkpointing=True,
    )

    first = restarts.decide(full)
    second = restarts.decide(replace(full, offers_checkpointing=False))

    assert (first.again, first.order.checkpoint_activations, first.order.batch_factor) == (
        True,
        True,
        1.0,
    )
    assert (second.again, second.order.checkpoint_activations, second.order.batch_factor) == (
        True,
        True,
        0.5,
    )


def test_a_script_that_cannot_split_its_batches_is_tried_as_after_any_crash() -> None:
    restarts = policy()

    verdicts = [restarts.decide(crash(11, ExitCause.OUT_OF_MEMORY, "OOM")) for _ in range(3)]

    assert [v.again for v in verdicts] == [True, True, False]
    assert verdicts[1].order.skip_steps == (11, 12)


def asked_for(step: int) -> WorkerExit:
    """The ladder asked for a restart."""
    return replace(crash(step, ExitCause.NONFINITE, "a restart"), sign=ExitSign.TREATMENT)


def test_restarts_of_the_ladder_that_do_not_help_never_end_a_training_that_is_finite() -> None:
    restarts = policy()

    verdicts = [restarts.decide(asked_for(step), risky=True, finite=True) for step in (9, 12, 14)]

    assert [verdict.again for verdict in verdicts] == [True, True, True]
    assert [verdict.order.resigned for verdict in verdicts] == [False, False, True]
    assert verdicts[-1].order.lr_factor == 1.0
    assert verdicts[-1].start == "latest"


def test_what_follows_a_training_that_is_left_alone_leaves_it_alone_too() -> None:
    restarts = policy()
    for step in (9, 12, 14):
        restarts.decide(asked_for(step), risky=True, finite=True)

    assert restarts.decide(crash(20)).order.resigned


def test_restarts_of_the_ladder_end_a_training_that_stays_not_finite() -> None:
    restarts = policy()

    verdicts = [restarts.decide(asked_for(step), risky=True).again for step in (9, 12, 14)]

    assert verdicts == [True, True, False]
