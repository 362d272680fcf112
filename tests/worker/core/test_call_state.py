"""Whose code it is that runs within a region."""

from __future__ import annotations

import threading

from supervisor.worker.core.call_state import CallState


def test_two_threads_of_a_backward_leave_the_training_its_own() -> None:
    """Hooks of weights on two devices are called by two threads of torch's at the same time."""
    state = CallState()
    state.active = True
    has_first, has_second = threading.Event(), threading.Event()
    seen = []

    def first() -> None:
        with state.scripts_own() as is_seen:
            seen.append(is_seen)
            has_first.set()
            has_second.wait(10)

    def second() -> None:
        has_first.wait(10)
        with state.scripts_own() as is_seen:
            seen.append(is_seen)
            has_second.set()
            one.join(10)

    one, other = threading.Thread(target=first), threading.Thread(target=second)
    with state.region():
        one.start()
        other.start()
        other.join(20)

        assert state.depth == 1
        assert not state.is_ours()
    assert state.is_ours()
    assert seen == [True, False]


def test_a_hook_may_begin_a_backward_that_calls_hooks() -> None:
    state = CallState()
    state.active = True

    with state.region(), state.scripts_own(), state.region(), state.scripts_own() as is_seen:
        assert is_seen
        assert state.is_ours()
    assert state.depth == 0
