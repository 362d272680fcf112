"""What SIGKILL does not end is not waited for for ever."""

from __future__ import annotations

import signal

from supervisor.parent.watching.unkillable import LEFT_BEHIND_AFTER_S, Unkillable


def test_the_wait_ends_some_time_after_the_first_sigkill() -> None:
    watch = Unkillable()

    assert not watch.is_there([[], [signal.SIGTERM]], 0.0)
    assert not watch.is_there([[], [signal.SIGTERM]], 1e6)
    assert not watch.is_there([[], [signal.SIGTERM, signal.SIGKILL]], 1e6 + 1)
    assert not watch.is_there([[signal.SIGKILL]], 1e6 + 1 + LEFT_BEHIND_AFTER_S)
    assert watch.is_there([[signal.SIGKILL]], 1e6 + 2 + LEFT_BEHIND_AFTER_S)
